"""Addresses that settings name."""

import re
from collections.abc import Collection
from urllib.parse import SplitResult, urlsplit

import httpx

HTTP = ("http", "https")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")


def scheme_of(given: str) -> str:
    """Return the scheme that a text begins with, in lower case; "" for a path."""
    found = _SCHEME.match(given)
    return found[1].lower() if found else ""


def address(given: str, schemes: Collection[str] = HTTP) -> SplitResult | None:
    """Return the parts of a URL with one of the schemes, a host and a usable port, None for any other text."""
    try:
        parts, port = urlsplit(given), urlsplit(given).port
        has_host = bool(parts.hostname and httpx.URL(given).host)
    except (ValueError, httpx.InvalidURL):
        return None
    return parts if parts.scheme in schemes and has_host and port != 0 else None


def host_and_port(given: str) -> tuple[str, int] | None:
    """Return the parts of HOST:PORT, an IPv6 address in brackets; None for any other text. Port 0 is among them."""
    host, colon, port = given.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not port.isascii() or not port.isdecimal() or int(port) > 65535 or not host.strip("[]"):
        return None
    return (host[1:-1], int(port)) if is_bracketed else None if ":" in host else (host, int(port))


def without_user(given: str) -> str:
    """Return an address, or what was meant as one, without what stands before its host."""
    return given.rpartition("@")[2]
