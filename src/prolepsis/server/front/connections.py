"""Checks how the server listens: keys for its address, TLS files, the number of connections; and announces it."""

import ipaddress
import os
import resource

import structlog

from prolepsis.core.config import ServerConfig
from prolepsis.core.errors import ConfigError
from prolepsis.core.network import server_tls
from prolepsis.server.front.keys import Keys

log = structlog.get_logger(__name__)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches `host`; a name other than localhost may mean anything."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_exposure(config: ServerConfig, keys: Keys) -> None:
    """Raise `ConfigError` where others than this machine could ask and no key is configured."""
    if not keys.required and not is_loopback(config.host):
        raise ConfigError(
            f"host is {config.host}, which others can reach, and there is no API key; create one with "
            "`prolepsis keys create`, name its file with --keys-file, or listen on 127.0.0.1",
            param="keys_file",
        )


def announce(config: ServerConfig, keys: Keys) -> None:
    """Say in the log what protects this server."""
    if not keys.required:
        log.warning("development_mode", detail="no API key is configured: every user of this machine may do everything")
    elif not config.tls_certificate and not is_loopback(config.host):
        log.warning("no_tls", detail="API keys arrive in clear unless something in front of this server ends TLS")


def check_tls(config: ServerConfig) -> None:
    """Raise `ConfigError` for a certificate or key that cannot be used."""
    server_tls(config.tls_certificate, config.tls_key)


_OTHER_FILES = 64
"""Descriptors left to what the server opens later: files, the database, surplus connections."""
_MOST_BY_DEFAULT = 4096


def connection_limit(config: ServerConfig) -> int:
    """Return how many connections may be open: as configured, but at most what the process has descriptors for."""
    wanted = config.limits.max_connections or _MOST_BY_DEFAULT
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    allowed = min(wanted, max(1, soft - len(os.listdir("/dev/fd")) - _OTHER_FILES))
    if config.limits.max_connections and allowed < wanted:
        log.warning("max_connections_lowered", to=allowed, given=wanted, open_files=soft)
    return allowed
