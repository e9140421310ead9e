"""TLS contexts from the files that settings name."""

import ssl
from pathlib import Path

from prolepsis.core.errors import ConfigError


def server_tls(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """Return the context of a server, None without a certificate; raises `ConfigError` for files of no use."""
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
    """Return the context of a client that trusts these certificates; raises `ConfigError` for a file of no use."""
    try:
        return ssl.create_default_context(cafile=authorities)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"TLS cannot be set up from {authorities}: {error}", param=param) from None
