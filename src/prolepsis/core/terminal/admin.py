"""Requests of commands to the admin API of a running server."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any

import httpx
import typer

from prolepsis.core.errors import ConfigError, InvalidParameter
from prolepsis.core.network import address

HERE = "http://127.0.0.1:8000"
Url = Annotated[str, typer.Option(help="address of the server")]
Key = Annotated[
    str | None,
    typer.Option(
        envvar="PROLEPSIS_API_KEY",
        help="API key; role viewer to look, operator to change, auditor to read the audit log",
    ),
]
_TIMEOUT_S = 30.0


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
    read: Callable[[httpx.Response], Any] = httpx.Response.json,
) -> Any:
    """Return what `read` makes of the server's reply; raises `InvalidParameter` with the server's error.

    Raises `NoServer` without a server, and `ConfigError` for what is no URL.
    """
    if address(url) is None:
        raise ConfigError(f"--url is {url!r}; allowed: the URL of a server, such as http://127.0.0.1:8000", param="url")
    headers = {"authorization": f"Bearer {key}"} if key else {}
    try:
        reply = httpx.request(
            method, f"{url.rstrip('/')}{path}", json=body, params=query, headers=headers, timeout=timeout_s
        )
        document = read(reply) if reply.status_code == 200 else reply.json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise NoServer(f"no server answers at {url}: {error}", param="url") from None
    if reply.status_code != 200:
        raise InvalidParameter(f"{reply.status_code}: {message_of(document)}")
    return document


def message_of(document: Any) -> str:
    """Return the message of an error; a server of another kind may reply in any form."""
    match document:
        case {"error": {"message": str(message)}}:
            return message
    return str(document)[:200]
