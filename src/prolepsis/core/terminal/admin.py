"""Requests of commands to the admin API of a running server."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import Timer
from typing import Annotated, Any

import httpx2
import typer

from prolepsis.core.errors import ConfigError, InvalidParameter
from prolepsis.core.network import EVERYWHERE, address, url_of
from prolepsis.core.terminal.flags import settings_here
from prolepsis.core.terminal.output import note

HERE = "http://127.0.0.1:8000"
URL_VARIABLE = "PROLEPSIS_URL"


def configured_url() -> str:
    """Return the address of the server that the settings of this folder are for."""
    server = settings_here().server
    host = "127.0.0.1" if server.host in EVERYWHERE else server.host
    return url_of(host, server.port, tls=server.tls_certificate is not None) if server.port else HERE


_FILE = "host and port of prolepsis.yaml"
Url = Annotated[
    str,
    typer.Option(
        "--url", envvar=URL_VARIABLE, default_factory=configured_url, show_default=_FILE, help="address of the server"
    ),
]
ServerUrl = Annotated[
    str | None,
    typer.Option("--url", help=f"address of a server, in place of what is on this machine [env var: {URL_VARIABLE}]"),
]
Key = Annotated[
    str | None,
    typer.Option(
        envvar="PROLEPSIS_API_KEY",
        help="API key; role viewer to look, operator to change, auditor to read the audit log",
    ),
]
_TIMEOUT_S = 30.0
PATIENCE_S = 2.0


@contextmanager
def waiting(what: str, after_s: float = PATIENCE_S, say: Callable[[str], None] = note) -> Iterator[None]:
    """Say on standard error for what a command waits, once that takes a while."""
    timer = Timer(after_s, say, [f"waiting for {what}"])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def server_in_place(url: str | None, of: object, name: str) -> str | None:
    """Return the server to ask in place of what is on this machine, None for the latter.

    `of` is what was given of this machine by the option `name`: where it is None, the variable names a server too.
    """
    if of is None:
        return url or os.environ.get(URL_VARIABLE) or None
    if url is not None:
        raise ConfigError(f"{name} and --url are both given; allowed: one of them", param="url")
    return None


class NoServer(ConfigError):
    """No server answers at the address given."""


def ask(
    url: str,
    key: str | None,
    method: str,
    path: str,
    body: Mapping[str, object] | None = None,
    *,
    query: Mapping[str, str] | None = None,
    timeout_s: float = _TIMEOUT_S,
    read: Callable[[httpx2.Response], Any] = httpx2.Response.json,
    also: int = 200,
) -> Any:
    """Return what `read` makes of the server's reply; raises `InvalidParameter` with the server's error.

    `also`: another status of replies that are no errors. Raises `NoServer` without a server, and `ConfigError` for what
    is no URL.
    """
    if address(url) is None:
        raise ConfigError(f"--url is {url!r}; allowed: the URL of a server, such as http://127.0.0.1:8000", param="url")
    headers = {"authorization": f"Bearer {key}"} if key else {}
    address_of = f"{url.rstrip('/')}{path}"
    try:
        with waiting(f"{method} {address_of.partition('?')[0]}, at most {timeout_s:.0f} s"):
            reply = httpx2.request(method, address_of, json=body, params=query, headers=headers, timeout=timeout_s)
        document = read(reply) if reply.status_code in (200, also) else reply.json()
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
        raise NoServer(f"no server answers at {url}: {error}", param="url") from None
    if reply.status_code not in (200, also):
        raise InvalidParameter(f"{reply.status_code}: {message_of(document)}")
    return document


def message_of(document: Any) -> str:
    """Return the message of an error; a server of another kind may reply in any form."""
    match document:
        case {"error": {"message": str(message)}}:
            return message
    return str(document)[:200]
