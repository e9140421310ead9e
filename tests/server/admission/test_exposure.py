"""What an address asks of keys; TLS files."""

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from prolepsis.core.config import EngineConfig, ServerConfig
from prolepsis.core.errors import ConfigError
from prolepsis.core.telemetry.metrics import Metrics
from prolepsis.server.front.key_file import KeyFile, new_key
from prolepsis.server.front.keys import Keys
from prolepsis.server.front.listener import check_tls, is_loopback
from prolepsis.server.run import StartedEngine, serve
from tests.server.application import build
from tests.server.fakes import ByteTokenizer, FakeEngine


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("localhost", True)]
    + [(host, False) for host in ("0.0.0.0", "::", "", "10.0.0.1", "localhost.example", "example.org")],
)
def test_loopback_addresses(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


def test_without_keys_other_addresses_are_refused_before_anything_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(config: EngineConfig, metrics: Metrics) -> StartedEngine:
        raise AssertionError("the model was loaded")

    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    config = ServerConfig(host="0.0.0.0", port=0)
    with pytest.raises(ConfigError, match="prolepsis keys create") as caught:
        serve(EngineConfig(), config, start)
    assert caught.value.param == "keys_file"


def test_a_key_file_that_was_named_must_be_there(tmp_path: Path) -> None:
    def start(config: EngineConfig, metrics: Metrics) -> StartedEngine:
        raise AssertionError("the model was loaded")

    with pytest.raises(ConfigError, match=r"keys\.json does not exist") as caught:
        serve(EngineConfig(), ServerConfig(port=0, keys_file=tmp_path / "keys.json"), start)
    assert caught.value.param == "keys_file"


def test_no_application_is_built_open_to_others(tmp_path: Path) -> None:
    config = ServerConfig(host="0.0.0.0")
    with pytest.raises(ConfigError):
        build(config, FakeEngine(), ByteTokenizer(), Metrics())
    file = KeyFile(tmp_path / "keys.json")
    file.add(new_key("acme")[0])
    build(config, FakeEngine(), ByteTokenizer(), Metrics(), keys=Keys(file))


def test_tls_files_are_checked_at_start(tmp_path: Path) -> None:
    check_tls(ServerConfig())
    with pytest.raises(ConfigError, match="without tls_certificate"):
        check_tls(ServerConfig(tls_key=tmp_path / "key.pem"))
    with pytest.raises(ConfigError, match="No such file"):
        check_tls(ServerConfig(tls_certificate=tmp_path / "no.pem"))
    (tmp_path / "bad.pem").write_text("not a certificate")
    with pytest.raises(ConfigError, match=r"bad\.pem"):
        check_tls(ServerConfig(tls_certificate=tmp_path / "bad.pem"))


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make a certificate")
def test_a_certificate_with_its_key_is_accepted(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    made = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost"
    subprocess.run(
        [*shlex.split(made), "-keyout", str(key), "-out", str(certificate)],
        check=True,
        capture_output=True,
        timeout=30,
    )
    check_tls(ServerConfig(tls_certificate=certificate, tls_key=key))
