"""How commands speak to a running server's /admin."""

from typing import Annotated, Any

import httpx
import typer

from prolepsis.core.errors import ConfigError, InvalidParameter

Url = Annotated[str, typer.Option(help="of the server")]
Key = Annotated[
    str | None,
    typer.Option(envvar="PROLEPSIS_API_KEY", help="API key with role operator; to look: viewer"),
]
HERE = "http://127.0.0.1:8000"
_TIMEOUT_S = 30.0


def ask_admin(url: str, key: str | None, method: str, path: str, body: dict[str, str] | None = None) -> Any:
    """Return the reply of /admin`path`; raises `InvalidParameter` with its message, `ConfigError` without a server."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    try:
        reply = httpx.request(method, f"{url.rstrip('/')}/admin{path}", json=body, headers=headers, timeout=_TIMEOUT_S)
        document = reply.json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise ConfigError(f"no server answers at {url}: {error}", param="url") from None
    if reply.status_code != 200:
        raise InvalidParameter(f"{reply.status_code}: {document['error']['message']}")
    return document
