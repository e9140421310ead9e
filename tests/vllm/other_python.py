"""Runs our scripts and our server with the Python of an environment that has vLLM 0.32, where one is named."""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.models.tiny import save_tiny
from tests.server_process import free_port
from tests.train.targets import save_target

VARIABLE = "PROLEPSIS_TEST_VLLM"
ROOT = Path(__file__).parent.parent.parent
needs_vllm = pytest.mark.skipif(
    VARIABLE not in os.environ, reason=f"{VARIABLE} does not name the Python of an environment with vLLM 0.32"
)


def report_of(script: str, folder: Path) -> dict[str, Any]:
    """Return what a script of this folder prints of a tiny model, which is written to `folder`."""
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
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[httpx.Client]:
    """Run `prolepsis serve --engine vllm` with a tiny model, and yield a client of it once it is ready."""
    target = tiny_target(folder / "target")
    port = str(free_port())
    arguments = ["serve", "--engine", "vllm", "--model", str(target), "--port", port, *options]
    command = [os.environ[VARIABLE], "-c", f"from prolepsis.cli.main import app\napp({arguments!r})"]
    with (folder / "log").open("w") as log:
        running = subprocess.Popen(command, env=environment(), stdout=log, stderr=subprocess.STDOUT)
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
        try:
            _wait_until_ready(http, running, folder / "log")
            yield http
        finally:
            running.kill()
            running.wait()


def tiny_target(folder: Path) -> Path:
    """Write a tiny model that vLLM loads, with a tokenizer, and return its folder."""
    folder.mkdir(exist_ok=True)
    save_target(folder)
    shape: dict[str, object] = {"vocab_size": 259, "tie_word_embeddings": True, "max_position_embeddings": 1024}
    save_tiny(folder, "llama", shape | {"head_dim": 32})  # vLLM's attention on the CPU has no 16
    return folder


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}


def _wait_until_ready(http: httpx.Client, running: "subprocess.Popen[bytes]", log: Path) -> None:
    end = time.monotonic() + 300
    while time.monotonic() < end and running.poll() is None:
        try:
            if http.get("/health/ready").status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.2)
    raise AssertionError(f"the server did not come up:\n{log.read_text()[-4000:]}")
