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


def without_user(given: str) -> str:
    """Return an address, or what was meant as one, without what stands before its host."""
    return given.rpartition("@")[2]
