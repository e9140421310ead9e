"""Addresses and TLS files that settings name, and TCP connections."""

import re
import socket
import ssl
from collections.abc import Collection
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

import httpx2

from prolepsis.core.errors import ConfigError

HTTP = ("http", "https")
EVERYWHERE = ("0.0.0.0", "::", "")  # noqa: S104
"""Hosts of a server that listens on every address of its machine."""
QUEUE_ADDRESS = re.compile(r"redis:(//([^\s/?#@]*@)?(\[[\w:]+\]|[\w.-]+)(:[0-6]?\d{1,4})?(/\d+)?)\?stream=([\w.:-]+)")
_MOST_MS = 2**31 - 1
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")


def scheme_of(given: str) -> str:
    """Return the scheme that a text begins with, in lower case; "" for a path."""
    match = _SCHEME.match(given)
    return match[1].lower() if match else ""


def address(given: str, schemes: Collection[str] = HTTP) -> SplitResult | None:
    """Return the parts of a URL with one of the schemes, a host and a usable port, None for any other text."""
    try:
        parts, port = urlsplit(given), urlsplit(given).port
        has_host = bool(parts.hostname and httpx2.URL(given).host)
    except (ValueError, httpx2.InvalidURL):
        return None
    return parts if parts.scheme in schemes and has_host and port != 0 else None


def host_and_port(given: str) -> tuple[str, int] | None:
    """Return the parts of HOST:PORT, an IPv6 address in brackets; None for any other text. Port 0 is among them."""
    host, colon, port = given.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not port.isascii() or not port.isdecimal() or int(port) > 65535 or not host.strip("[]"):
        return None
    return (host[1:-1], int(port)) if is_bracketed else None if ":" in host else (host, int(port))


def url_of(host: str, port: int, *, tls: bool) -> str:
    """Return the URL of a server at this address."""
    return f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


def without_user(given: str) -> str:
    """Return an address, or what was meant as one, without what stands before its host."""
    return given.rpartition("@")[2]


def server_tls(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """Return the context of a server, None without a certificate; raises `ConfigError` for unusable files."""
    if certificate is None:
        if key is not None:
            message = "tls_key is given without tls_certificate; allowed: both, or the certificate"
            raise ConfigError(message, param="tls_key")
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        files = f"{certificate}" + (f" and {key}" if key else "")
        raise ConfigError(f"TLS cannot be set up from {files}: {error}", param="tls_certificate") from None
    return context


def client_tls(authorities: Path, param: str) -> ssl.SSLContext:
    """Return the context of a client that trusts these certificates; raises `ConfigError` for an unusable file."""
    try:
        return ssl.create_default_context(cafile=authorities)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"TLS cannot be set up from {authorities}: {error}", param=param) from None


def end_unacknowledged(connection: socket.socket, after_s: float = 10.0) -> None:
    """Have the kernel end a TCP connection whose other side has not acknowledged data for `after_s` seconds.

    On Linux; elsewhere the limits of the system hold. Connections inherit it from their listener.
    """
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        milliseconds = min(max(1, round(1000 * after_s)), _MOST_MS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
