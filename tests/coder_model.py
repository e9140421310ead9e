"""How tests run the coder model that people use, where a variable names its file: it is loaded once a session."""

import os

import pytest

from prolepsis.core.config import EngineConfig

VARIABLE = "PROLEPSIS_TEST_CODER_MODEL"
CONFIG = EngineConfig(
    model=os.environ.get(VARIABLE, ""),
    kv_memory="384MiB",
    max_model_len=4096,
    stuck_after_s=0,
    threads=1 if "PYTEST_XDIST_WORKER" in os.environ else None,
)
"""Pages for 14,000 tokens, half of them if there is a draft model; the self-check runs once on a machine.

No step counts as stuck: 512 tokens behind 15,000 others take 12 seconds of a core, and a busy machine has few of them.
"""
needs_coder = pytest.mark.skipif(
    VARIABLE not in os.environ, reason=f"{VARIABLE} does not name the file of Qwen2.5-Coder 1.5B Instruct"
)
SLOW_S = 1200
"""Seconds of one test: the first one measures passes."""
