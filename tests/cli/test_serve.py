"""`prolepsis serve` where it cannot start; what it serves is tested with the server."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest


def serve(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = f"from prolepsis.cli.main import app\napp(['serve', *{list(arguments)!r}])"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)


def test_a_busy_port_is_status_4_before_anything_is_loaded(tmp_path: Path) -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        done = serve("--port", str(port), "--model", "no/such/model", "--model-dir", str(tmp_path))
    assert done.returncode == 4
    assert f"127.0.0.1:{port}" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("host", ["not.an.address.invalid"])
def test_an_address_of_no_machine_is_status_4(host: str) -> None:
    done = serve("--host", host, "--port", "0")
    assert done.returncode == 4
    assert host in done.stderr


def test_a_model_that_is_nowhere_is_status_3(tmp_path: Path) -> None:
    done = serve("--port", "0", "--model", "no/such/model", "--model-dir", str(tmp_path))
    assert done.returncode == 3
    assert done.stderr.startswith("error: ")
    assert "no/such/model" in done.stderr


def test_an_address_that_others_reach_asks_for_keys(tmp_path: Path) -> None:
    done = serve("--host", "0.0.0.0", "--port", "0", "--keys-file", str(tmp_path / "keys.json"))
    assert done.returncode == 2
    assert "prolepsis keys create" in done.stderr
