"""The whole process: a busy port, readiness, a stop that lets answers end and one that does not."""

import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import httpx
import pytest
from uvicorn.protocols.http.h11_impl import H11Protocol

from prolepsis.api.app import build
from prolepsis.api.run import StartedEngine, StoppingServer, bind, serve
from prolepsis.core.config import EngineConfig, ServerConfig
from prolepsis.core.errors import ConfigError
from prolepsis.telemetry.metrics import Metrics
from tests.api.fakes import ByteTokenizer, FakeEngine

SCRIPT = """
import sys
from prolepsis.core.config import EngineConfig, ServerConfig
from prolepsis.api.run import StartedEngine, serve
from tests.api.fakes import ByteTokenizer, FakeEngine

port, hold, delay, bound = int(sys.argv[1]), eval(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])
certificate = sys.argv[5] if len(sys.argv) > 5 else None
engine = FakeEngine(hold_after=hold, delay_s=delay)
config = ServerConfig(port=port, shutdown_s=bound, tls_certificate=certificate)
serve(EngineConfig(), config, lambda c, m: StartedEngine(engine, ByteTokenizer()))
assert engine.closed
print("ended")
"""
RESTARTING = """
import sys
from prolepsis.core.config import EngineConfig, ServerConfig
from prolepsis.core.errors import EngineDead
from prolepsis.api.run import StartedEngine, serve
from tests.api.fakes import ByteTokenizer, FakeEngine
from tests.fake_client import FakeEngineClient

async def again():
    return FakeEngine()

ending = FakeEngineClient(lambda request: [EngineDead("gone")])
config = ServerConfig(port=int(sys.argv[1]), engine_restarts=int(sys.argv[2]), replay_sample=0.0)
serve(EngineConfig(), config, lambda c, m: StartedEngine(ending, ByteTokenizer(), restart=again))
"""
STREAM = {"model": "tiny", "prompt": "Hi", "stream": True, "max_tokens": 40}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def process(
    hold: str, delay: float, bound: float, certificate: Path | None = None
) -> AbstractContextManager[tuple[subprocess.Popen[str], str]]:
    return started(SCRIPT, hold, str(delay), str(bound), certificate=certificate)


@contextmanager
def started(
    script: str, *arguments: str, certificate: Path | None = None
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    port = free_port()
    command = [sys.executable, "-c", script, str(port), *arguments, *([str(certificate)] if certificate else [])]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    url = f"{'https' if certificate else 'http'}://127.0.0.1:{port}"
    try:
        wait_until_live(url, certificate)
        yield running, url
    finally:
        running.kill()
        running.communicate()


def trusting(certificate: Path | None) -> ssl.SSLContext | bool:
    return ssl.create_default_context(cafile=str(certificate)) if certificate else True


def wait_until_live(url: str, certificate: Path | None = None) -> None:
    end = time.monotonic() + 60
    verify = trusting(certificate)
    while time.monotonic() < end:
        try:
            if httpx.get(f"{url}/health/live", verify=verify).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.05)
    raise AssertionError("the server did not come up")


def test_a_busy_port_is_an_error_before_anything_is_loaded() -> None:
    def start(config: EngineConfig, metrics: Metrics) -> StartedEngine:
        raise AssertionError("the model was loaded for a port that is taken")

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port}: Address already in use") as caught:
            serve(EngineConfig(), ServerConfig(port=port), start)
    assert caught.value.param == "port"


def test_what_is_installed_beside_it_changes_no_protocol() -> None:
    engine = FakeEngine()
    settings = StoppingServer(build(ServerConfig(), engine, ByteTokenizer(), Metrics()), engine, ServerConfig()).config
    assert isinstance(settings.http, type)
    assert issubclass(settings.http, H11Protocol)
    assert settings.ws == "none"


def test_an_unknown_host_is_an_error() -> None:
    with pytest.raises(ConfigError, match="host"):
        bind(ServerConfig(host="256.0.0.1"))


def test_a_certificate_serves_https(tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    made = tmp_path / "both.pem"
    ask = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=127.0.0.1"]
    ask += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(tmp_path / "key"), "-out", str(tmp_path / "chain")]
    subprocess.run(ask, check=True, capture_output=True)
    made.write_text((tmp_path / "key").read_text() + (tmp_path / "chain").read_text())
    with process("None", 0.0, 5.0, made) as (_, url):
        reply = httpx.post(f"{url}/v1/completions", json=STREAM | {"stream": False}, verify=trusting(made))
        assert reply.status_code == 200
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/health/live")  # an unknown authority
        with pytest.raises(httpx.TransportError):
            httpx.get(url.replace("https", "http") + "/health/live")


def test_an_engine_that_ended_is_started_again_unless_that_is_turned_off() -> None:
    with started(RESTARTING, "1") as (_, url):
        assert httpx.post(f"{url}/v1/completions", json=STREAM | {"stream": False}).status_code == 200
        assert 'prolepsis_engine_restarts_total{result="started"} 1.0' in httpx.get(f"{url}/metrics").text
    with started(RESTARTING, "0") as (_, url):
        reply = httpx.post(f"{url}/v1/completions", json=STREAM | {"stream": False})
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "engine_dead")


def test_sigterm_lets_an_answer_end_and_takes_no_other_on_the_open_port() -> None:
    with process("None", 0.3, 60) as (running, url):
        with httpx.stream("POST", f"{url}/v1/completions", json=STREAM, timeout=60) as response:
            lines = response.iter_lines()
            first = next(lines)
            running.send_signal(signal.SIGTERM)
            while (ready := httpx.get(f"{url}/health/ready")).status_code == 200:
                time.sleep(0.01)
            assert (ready.status_code, ready.json()["detail"]) == (503, "shutting down")
            late = httpx.post(f"{url}/v1/completions", json=STREAM)
            assert (late.status_code, late.json()["error"]["code"]) == (503, "server_draining")
            assert "retry-after" in late.headers
            rest = [line for line in lines if line]
        assert first.startswith("data: {")
        assert rest[-1] == "data: [DONE]"
        output, _ = running.communicate(timeout=60)
        assert running.returncode == 0, output
        assert output.endswith("ended\n")
        assert "ready" in output


def test_sigterm_aborts_what_does_not_end_within_the_bound() -> None:
    with process("2", 0.0, 0.3) as (running, url):
        with httpx.stream("POST", f"{url}/v1/completions", json=STREAM, timeout=60) as response:
            lines = response.iter_lines()
            next(lines)
            running.send_signal(signal.SIGTERM)
            rest = [line for line in lines if line]
        assert "request_aborted" in rest[-1]
        output, _ = running.communicate(timeout=60)
        assert running.returncode == 0, output
