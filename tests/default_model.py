"""How tests run the default model, which is loaded and checked once a session."""

import os

from prolepsis.core.config import EngineConfig

CONFIG = EngineConfig(max_model_len=2048, strict="off", threads=1 if "PYTEST_XDIST_WORKER" in os.environ else None)
"""Engines leave the self-check to the fixture `strict`; a worker has one core."""
