"""How tests run the default model, which is loaded once a session."""

import os

from prolepsis.core.config import EngineConfig

CONFIG = EngineConfig(max_model_len=2048, threads=1 if "PYTEST_XDIST_WORKER" in os.environ else None)
"""A worker has one core."""
