"""Headers that a reply gets besides its own, also where the request is refused."""

import re

from starlette.requests import HTTPConnection

REPLY_HEADERS = "reply_headers"  # where they stand in a request's state
WARNING = "warning"
_NOT_QUOTED = re.compile(r"[^ !#-\[\]-~]")


def reply_headers(http: HTTPConnection) -> dict[str, str]:
    """Return the mapping to fill before the reply starts; `AuthMiddleware` sends it."""
    headers: dict[str, str] = http.scope["state"].setdefault(REPLY_HEADERS, {})
    return headers


def warn(http: HTTPConnection, text: str) -> None:
    """Say in the header `warning` what is not done as the client asked."""
    headers, warning = reply_headers(http), f'299 - "{_NOT_QUOTED.sub("?", text)}"'
    before = headers.get(WARNING, "")
    if warning not in before:
        headers[WARNING] = f"{before}, {warning}" if before else warning
