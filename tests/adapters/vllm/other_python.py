"""Runs our scripts and our server with the Python of an environment that has vLLM 0.32, where one is named."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests import commands
from tests.commands import free_port, prolepsis
from tests.engine.models.tiny import save_tiny
from tests.paths import ROOT
from tests.training.targets import save_target

VARIABLE = "PROLEPSIS_TEST_VLLM"
needs_vllm = pytest.mark.skipif(
    VARIABLE not in os.environ, reason=f"{VARIABLE} does not name the Python of an environment with vLLM 0.32"
)


def report_of(script: str, folder: Path) -> dict[str, Any]:
    """Return what a script of this folder prints of a tiny model, which is written to `folder`, and beside it."""
    done = subprocess.run(  # our own script
        [os.environ[VARIABLE], str(Path(__file__).with_name(script)), str(tiny_target(folder))],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[max(0, said.find("Traceback")) :][:4000]
    *others, document = done.stdout.splitlines()
    found: dict[str, Any] = json.loads(document)
    return found | {"others": others}


@contextmanager
def serving(folder: Path, *options: str, target: Path | None = None) -> Iterator[httpx2.Client]:
    """Run `prolepsis serve --engine vllm` with a model, and yield a client of it once it is ready."""
    target = target or tiny_target(folder / "target")
    url = f"http://127.0.0.1:{(port := free_port())}"
    arguments = ["serve", "--engine", "vllm", "--model", str(target), "--port", str(port), *options]
    command = prolepsis(*arguments, python=os.environ[VARIABLE])
    with (
        commands.serving(command, f"{url}/health/ready", folder / "log", environment(), wait_s=300),
        httpx2.Client(base_url=url, timeout=60) as http,
    ):
        yield http


def tiny_target(folder: Path) -> Path:
    """Write a tiny model that vLLM loads, with a tokenizer, and return its folder."""
    folder.mkdir(exist_ok=True)
    save_target(folder)
    shape: dict[str, object] = {"vocab_size": 259, "tie_word_embeddings": True, "max_position_embeddings": 1024}
    save_tiny(folder, "llama", shape | {"head_dim": 32})  # vLLM's attention on the CPU has no 16
    return folder


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
