"""Headers that the front door adds to whatever a route replies."""

from starlette.requests import HTTPConnection

NAME = "reply_headers"


def reply_headers(http: HTTPConnection) -> dict[str, str]:
    """Return the mapping to fill before the reply starts; `Guard` sends it."""
    headers: dict[str, str] = http.scope["state"].setdefault(NAME, {})
    return headers
