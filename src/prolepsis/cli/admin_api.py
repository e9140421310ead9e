"""What commands share that speak to /admin of a running server."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

import httpx
import typer

from prolepsis.core.errors import ConfigError, InvalidParameter

HERE = "http://127.0.0.1:8000"
Url = Annotated[str, typer.Option(help="of the server")]
Key = Annotated[
    str | None,
    typer.Option(envvar="PROLEPSIS_API_KEY", help="API key with role operator; to look: viewer"),
]
_TIMEOUT_S = 30.0


def ask(url: str, key: str | None, method: str, path: str, body: Mapping[str, object] | None = None) -> Any:
    """Return the server's reply to `METHOD /admin/PATH`.

    Raises `InvalidParameter` with what the server says where it refuses, `ConfigError` where it is not reached.
    """
    headers = {"authorization": f"Bearer {key}"} if key else {}
    try:
        reply = httpx.request(method, f"{url.rstrip('/')}/admin/{path}", json=body, headers=headers, timeout=_TIMEOUT_S)
        document = reply.json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise ConfigError(f"no server answers at {url}: {error}", param="url") from None
    if reply.status_code != 200:
        raise InvalidParameter(f"{reply.status_code}: {document['error']['message']}")
    return document


def shown_time(seconds: float) -> str:
    """Return a Unix time in UTC, as tables show it."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}"
