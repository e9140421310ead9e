"""Who may ask a server without keys: programs on this machine, and no web page from elsewhere.

A page that a browser on this machine shows can send requests to a loopback address, and after DNS rebinding read the
answers too. Its requests give themselves away by the name they ask for (`Host`) or the page they are from (`Origin`).
"""

import re

from starlette.datastructures import Headers

from prolepsis.server.door.exposure import is_loopback
from prolepsis.server.door.refusals import not_local

_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^:\[\]/@]+))(?::\d{0,5})?")


def check_local(headers: Headers) -> None:
    """Raise `Refused` (403) unless a request names a loopback host, and no origin or a loopback one."""
    hosts, origins = headers.getlist("host"), headers.getlist("origin")
    if len(hosts) != 1 or not _is_local(hosts[0]):
        raise not_local("Host", ", ".join(hosts))
    if not all(_is_local_origin(origin) for origin in origins):
        raise not_local("Origin", ", ".join(origins))


def _is_local(host: str) -> bool:
    match = _HOST.fullmatch(host.strip().lower())
    return match is not None and is_loopback(match[1] or match[2])


def _is_local_origin(origin: str) -> bool:
    scheme, separator, host = origin.strip().lower().partition("://")
    return scheme in ("http", "https") and bool(separator) and _is_local(host)
