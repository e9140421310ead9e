"""How commands speak to a running server."""

from collections.abc import Mapping
from typing import Annotated, Any

import httpx
import typer

from prolepsis.core.errors import ConfigError, InvalidParameter

Url = Annotated[str, typer.Option(help="of the server")]
Key = Annotated[
    str | None,
    typer.Option(
        envvar="PROLEPSIS_API_KEY",
        help="API key; to look needs role viewer, to change operator, the audit log auditor",
    ),
]
HERE = "http://127.0.0.1:8000"
_TIMEOUT_S = 30.0


def ask(
    url: str,
    key: str | None,
    method: str,
    path: str,
    body: Mapping[str, object] | None = None,
    *,
    timeout_s: float = _TIMEOUT_S,
) -> Any:
    """Return the server's reply; raises `InvalidParameter` with its message, `ConfigError` where it is not reached."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    try:
        reply = httpx.request(method, f"{url.rstrip('/')}{path}", json=body, headers=headers, timeout=timeout_s)
        document = reply.json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise ConfigError(f"no server answers at {url}: {error}", param="url") from None
    if reply.status_code != 200:
        raise InvalidParameter(f"{reply.status_code}: {_message(document)}")
    return document


def _message(document: Any) -> str:
    """Return what a refusal says; a server of another kind may say it in any form."""
    match document:
        case {"error": {"message": str(message)}}:
            return message
    return str(document)[:200]
