"""`prolepsis serve` where it cannot start; what it serves is tested with the server."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from prolepsis.server.cli.main import app


def serve(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["serve", *arguments])


def test_a_busy_port_is_status_4_before_anything_is_loaded(tmp_path: Path) -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        done = serve("--port", str(port), "--model", "no/such/model", "--model-dir", str(tmp_path))
    assert done.exit_code == 4
    assert f"127.0.0.1:{port}" in done.stderr
    ours = [line for line in done.stderr.splitlines() if "phase=" not in line]  # a slow start says what it does
    assert len(ours) == 1


def test_an_address_of_no_machine_is_status_4() -> None:
    host = "not.an.address.invalid"
    done = serve("--host", host, "--port", "0")
    assert done.exit_code == 4
    assert host in done.stderr


def test_a_model_that_is_nowhere_is_status_3_of_the_process(tmp_path: Path) -> None:
    arguments = ["serve", "--port", "0", "--model", "no/such/model", "--model-dir", str(tmp_path)]
    program = f"from prolepsis.server.cli.main import app\napp({arguments!r})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 3
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: ")
    assert "no/such/model" in last


def test_an_address_that_others_reach_asks_for_keys(tmp_path: Path) -> None:
    done = serve("--host", "0.0.0.0", "--port", "0", "--keys-file", str(tmp_path / "keys.json"))
    assert done.exit_code == 2
    assert "prolepsis keys create" in done.stderr


@pytest.mark.parametrize(
    ("setting", "value"), [("engine-process", "on"), ("strict", "on"), ("proposers", "draft_model")]
)
def test_settings_that_vllm_cannot_follow_are_refused_before_it_loads(setting: str, value: str, tmp_path: Path) -> None:
    done = serve("--port", "0", "--engine", "vllm", "--store", "none", f"--{setting}", value, "--model", str(tmp_path))
    assert done.exit_code == 2
    assert setting.replace("-", "_") in done.stderr
    assert "with engine vllm" in done.stderr


@pytest.mark.parametrize(
    ("setting", "value"), [("replay-sample", "0.5"), ("kv-memory", "1GiB"), ("upstream", "plain=nowhere")]
)
def test_settings_that_upstream_engines_cannot_follow_are_named(setting: str, value: str, tmp_path: Path) -> None:
    arguments = ["--engine", "upstream", "--store", "none", "--model", str(tmp_path), f"--{setting}", value]
    done = serve("--port", "0", *arguments)
    assert done.exit_code == 2
    assert setting.replace("-", "_") in done.stderr


def test_replicas_of_an_engine_that_cannot_be_one_are_refused(tmp_path: Path) -> None:
    done = serve("--port", "0", "--engine", "vllm", "--replicas", "2", "--store", "none", "--model", str(tmp_path))
    assert done.exit_code == 2
    assert "engine is 'vllm'; allowed with replicas: prolepsis" in done.stderr
