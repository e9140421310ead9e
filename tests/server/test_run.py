"""The whole process: a busy port, readiness, a stop that lets answers end and one that does not."""

import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest
from uvicorn.protocols.http.h11_impl import H11Protocol

from prolepsis.core.config import EngineConfig, ServerConfig
from prolepsis.core.errors import ConfigError, EngineDead
from prolepsis.core.telemetry.metrics import Metrics
from prolepsis.server.run import StartedEngine, StoppingServer, bind, serve
from tests.commands import trusting
from tests.server.application import build
from tests.server.conftest import served
from tests.server.fakes import ByteTokenizer, FakeEngine
from tests.server.raw_http import connected
from tests.server_process import ServerProcess, serve_ending, serve_fake, started
from tests.waiting import wait_for

STREAM = {"model": "tiny", "prompt": "Hi", "stream": True, "max_tokens": 40}


def restarts(number: int) -> ServerConfig:
    return ServerConfig(engine_restarts=number, replay_sample=0.0)


def test_a_busy_port_is_an_error_before_anything_is_loaded() -> None:
    def start(config: EngineConfig, metrics: Metrics) -> StartedEngine:
        raise AssertionError("the model was loaded for a port that is taken")

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port}: Address already in use") as caught:
            serve(EngineConfig(), ServerConfig(port=port), start)
    assert caught.value.param == "port"


def test_limits_that_mean_nothing_are_an_error_before_anything_is_loaded() -> None:
    def start(config: EngineConfig, metrics: Metrics) -> StartedEngine:
        raise AssertionError("the model was loaded for limits that mean nothing")

    with pytest.raises(ConfigError, match="tier:golden"):
        serve(EngineConfig(), ServerConfig(port=0, requests_per_minute={"tier:golden": 1}), start)


def test_other_installed_packages_do_not_change_the_protocol() -> None:
    engine = FakeEngine()
    settings = StoppingServer(build(ServerConfig(), engine, ByteTokenizer(), Metrics()), engine, ServerConfig()).config
    assert isinstance(settings.http, type)
    assert issubclass(settings.http, H11Protocol)
    assert settings.ws == "none"


def test_malformed_requests_write_few_lines_however_many_come(lines: Callable[[], list[dict[str, object]]]) -> None:
    StoppingServer(build(ServerConfig(), FakeEngine(), ByteTokenizer(), Metrics()), FakeEngine(), ServerConfig())
    with served(FakeEngine()) as running:
        for _ in range(100):
            with connected(running) as client:
                client.sendall(b"no request\r\n\r\n")
                assert client.recv(65536).startswith(b"HTTP/1.1 400")
    assert 1 <= [line["event"] for line in lines()].count("http_server") < 40


def test_an_unknown_host_is_an_error() -> None:
    with pytest.raises(ConfigError, match="host"):
        bind(ServerConfig(host="256.0.0.1"))


def test_a_server_on_any_free_port_says_which_one(tmp_path: Path) -> None:
    """The registry of replicas, which the console links to, had port 0."""
    output = tmp_path / "output"
    running = ServerProcess(serve_fake, ServerConfig(port=0, store="none"), output=output)
    try:
        wait_for(lambda: output.exists() and "listening" in output.read_text())
        url = re.findall(r"http://127\.0\.0\.1:\d+", output.read_text())[0]
        [here] = httpx2.get(f"{url}/admin/replicas").json()["replicas"]
    finally:
        running.kill()
        running.wait()
    assert here["address"] == url


def test_a_certificate_serves_https(tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    made = tmp_path / "both.pem"
    ask = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=127.0.0.1"]
    ask += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(tmp_path / "key"), "-out", str(tmp_path / "chain")]
    subprocess.run(ask, check=True, capture_output=True)
    made.write_text((tmp_path / "key").read_text() + (tmp_path / "chain").read_text())
    with started(serve_fake, ServerConfig(shutdown_s=5.0, tls_certificate=made), certificate=made) as (_, url):
        reply = httpx2.post(f"{url}/v1/completions", json=STREAM | {"stream": False}, verify=trusting(made))
        assert reply.status_code == 200
        with pytest.raises(httpx2.ConnectError):
            httpx2.get(f"{url}/health/live")  # an unknown authority
        with pytest.raises(httpx2.TransportError):
            httpx2.get(url.replace("https", "http") + "/health/live")


def test_an_engine_that_ended_is_started_again_unless_that_is_turned_off() -> None:
    with started(serve_ending, restarts(1)) as (_, url):
        assert httpx2.post(f"{url}/v1/completions", json=STREAM | {"stream": False}).status_code == 200
        assert 'prolepsis_engine_restarts_total{result="started"} 1.0' in httpx2.get(f"{url}/metrics").text
    with started(serve_ending, restarts(0)) as (_, url):
        reply = httpx2.post(f"{url}/v1/completions", json=STREAM | {"stream": False})
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "engine_dead")


def test_a_server_whose_engine_is_gone_for_good_stops_and_says_why() -> None:
    engine = FakeEngine()
    engine.reported = replace(engine.reported, alive=False, ready=False, detail="the engine stays away")
    config = ServerConfig(port=0, store="none", replay_sample=0.0)
    with pytest.raises(EngineDead, match="its engine is gone: the engine stays away"):
        serve(EngineConfig(), config, lambda *_: StartedEngine(engine, ByteTokenizer()))
    assert engine.closed


def test_sigterm_lets_an_answer_end_and_takes_no_other_on_the_open_port(tmp_path: Path) -> None:
    output = tmp_path / "output"
    with started(serve_fake, ServerConfig(shutdown_s=60), None, 0.3, output=output) as (running, url):
        with httpx2.stream("POST", f"{url}/v1/completions", json=STREAM, timeout=60) as response:
            lines = response.iter_lines()
            next(line for line in lines if line.startswith("data: {"))
            running.send_signal(signal.SIGTERM)
            while (ready := httpx2.get(f"{url}/health/ready")).status_code == 200:
                time.sleep(0.01)
            assert (ready.status_code, ready.json()["detail"]) == (503, "shutting down")
            late = httpx2.post(f"{url}/v1/completions", json=STREAM)
            assert (late.status_code, late.json()["error"]["code"]) == (503, "server_draining")
            assert "retry-after" in late.headers
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert running.wait(60) == 0, output.read_text()
    assert output.read_text().endswith("ended\n")
    assert "ready" in output.read_text()


def test_sigterm_aborts_what_does_not_end_within_the_bound(tmp_path: Path) -> None:
    output = tmp_path / "output"
    with started(serve_fake, ServerConfig(shutdown_s=0.3), 2, output=output) as (running, url):
        with httpx2.stream("POST", f"{url}/v1/completions", json=STREAM, timeout=60) as response:
            lines = response.iter_lines()
            next(lines)
            running.send_signal(signal.SIGTERM)
            rest = [line for line in lines if line]
        assert "request_aborted" in rest[-1]
        assert running.wait(60) == 0, output.read_text()
