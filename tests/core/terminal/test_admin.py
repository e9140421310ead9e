"""Commands find their server in one way, and say for what they wait."""

from pathlib import Path

import pytest

from prolepsis.core.errors import ConfigError
from prolepsis.core.terminal.admin import URL_VARIABLE, configured_url, server_in_place, waiting
from tests.waiting import wait_for


@pytest.mark.parametrize(
    ("settings", "url"),
    [
        ("", "http://127.0.0.1:8000"),
        ("port: 8123\n", "http://127.0.0.1:8123"),
        ("host: 10.0.0.7\ntls_certificate: cert.pem\n", "https://10.0.0.7:8000"),
        ("host: 0.0.0.0\nport: 9000\n", "http://127.0.0.1:9000"),
        ("host: '::1'\n", "http://[::1]:8000"),
        ("port: 0\n", "http://127.0.0.1:8000"),
    ],
)
def test_the_settings_of_a_folder_say_where_its_server_is(
    settings: str, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prolepsis.yaml").write_text(settings)
    assert configured_url() == url


@pytest.mark.parametrize(
    ("url", "of", "variable", "found"),
    [
        (None, None, "", None),
        (None, None, "http://b", "http://b"),
        ("http://a", None, "http://b", "http://a"),
        (None, "sqlite:///x", "http://b", None),
    ],
)
def test_what_is_named_here_comes_before_the_variable(
    url: str | None, of: str | None, variable: str, found: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(URL_VARIABLE, variable)
    assert server_in_place(url, of, "--store") == found


def test_a_server_and_a_store_are_not_both_meant() -> None:
    with pytest.raises(ConfigError, match="--store and --url are both given"):
        server_in_place("http://a", "sqlite:///x", "--store")


def test_only_a_long_wait_is_told() -> None:
    said: list[str] = []
    with waiting("the quick", 60.0, said.append):
        pass
    with waiting("the slow", 0.0, said.append):
        wait_for(lambda: said)
    assert said == ["waiting for the slow"]
