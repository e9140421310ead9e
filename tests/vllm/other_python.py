"""Runs our scripts with the Python of an environment that has vLLM 0.32, where one is named."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.models.tiny import save_tiny
from tests.train.targets import save_target

VARIABLE = "PROLEPSIS_TEST_VLLM"
ROOT = Path(__file__).parent.parent.parent
needs_vllm = pytest.mark.skipif(
    VARIABLE not in os.environ, reason=f"{VARIABLE} does not name the Python of an environment with vLLM 0.32"
)


def report_of(script: str, folder: Path) -> dict[str, Any]:
    """Return what a script of this folder prints of a tiny model, which is written to `folder`."""
    save_target(folder)
    shape: dict[str, object] = {"vocab_size": 259, "tie_word_embeddings": True, "max_position_embeddings": 1024}
    save_tiny(folder, "llama", shape | {"head_dim": 32})  # vLLM's attention on the CPU has no 16
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    done = subprocess.run(  # our own script
        [os.environ[VARIABLE], str(Path(__file__).with_name(script)), str(folder)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[max(0, said.find("Traceback")) :][:4000]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
