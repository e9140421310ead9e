import pytest

from prolepsis.core.network import address, scheme_of, without_user


@pytest.mark.parametrize("given", ["http://host", "HTTPS://ann:secret@host:443/path?query", "http://[::1]:9093"])
def test_an_address_has_scheme_host_and_port(given: str) -> None:
    parts = address(given)
    assert parts is not None
    assert parts.hostname in ("host", "::1")


@pytest.mark.parametrize(
    "given",
    [
        "",
        "host",
        "host:80",
        "ftp://host",
        "http://",
        "http://:80",
        "http://[x",
        "http://host:0",
        "/file",
    ],
)
def test_anything_else_is_none(given: str) -> None:
    assert address(given) is None


def test_other_schemes_are_named() -> None:
    assert address("postgresql://host", ("postgresql",)) is not None
    assert address("http://host", ("postgresql",)) is None


def test_a_path_has_no_scheme() -> None:
    assert [scheme_of(given) for given in ("HTTP://host", "audit.jsonl", "./a:b", "")] == ["http", "", "", ""]


def test_an_address_is_shown_without_user() -> None:
    assert without_user("ftp://ann:secret@host") == "host"
