"""Where the server listens and how: what an address asks of keys, and the files of TLS."""

import asyncio
import ipaddress
import resource
import ssl
from http import HTTPStatus
from typing import Any, ClassVar

import h11
import structlog
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from prolepsis.api.admission.metrics import AdmissionMetrics
from prolepsis.api.auth.keys import Keys
from prolepsis.core.config import ServerConfig
from prolepsis.core.errors import ConfigError
from prolepsis.web.errors import RequestRefused
from prolepsis.web.refusals import headers_too_slow, too_many_connections

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
    if config.tls_certificate is None:
        if config.tls_key is not None:
            raise ConfigError(
                "tls_key is given without tls_certificate; allowed: both, or the certificate", param="tls_key"
            )
        return
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(config.tls_certificate, config.tls_key)
    except (OSError, ssl.SSLError) as error:
        files = f"{config.tls_certificate}" + (f" and {config.tls_key}" if config.tls_key else "")
        raise ConfigError(f"TLS cannot be set up from {files}: {error}", param="tls_certificate") from None


_OTHER_FILES = 64
_MOST_BY_DEFAULT = 4096


def default_max_connections() -> int:
    """Return what the process' limit of open files leaves for connections, within reason."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST_BY_DEFAULT if soft == resource.RLIM_INFINITY else min(_MOST_BY_DEFAULT, max(1, soft - _OTHER_FILES))


class GatewayProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 with a bound on connections and on every wait for a client; refusals have OpenAI's shape.

    One clock a connection: a request's head has to be whole within `header_timeout_s` of the connection's start or of
    the answer before, the rest of a body within `linger_s` of its answer, however steadily bytes trickle in. While a
    route reads a body the guard has its own clock.
    """

    door: ClassVar[ServerConfig]
    max_connections: ClassVar[int]
    metrics: ClassVar[AdmissionMetrics]
    linger_s: ClassVar[float] = 2.0
    """For the rest of a body that was answered before its end, and for the request of a surplus connection."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],  # uvicorn's own type
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._surplus = False
        self._waits_for: tuple[float | None, object] = (None, None)
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        self._surplus = len(self.connections) >= self.max_connections
        super().connection_made(transport)
        if self._surplus:
            self.connections.discard(self)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_timer()

    def data_received(self, data: bytes) -> None:
        if self._surplus:  # not answered earlier: the reset would drop a reply that comes before its request
            self._refuse(too_many_connections(self.max_connections))
            return
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def send_400_response(self, msg: str) -> None:
        self._refuse(RequestRefused(msg, code="invalid_http"))

    def _watch(self) -> None:
        """Restart the clock when the client owes something else."""
        waits_for = (self._patience_s(), self.cycle)
        if waits_for == self._waits_for:
            return
        self._waits_for = waits_for
        self._stop_timer()
        if waits_for[0] is not None and not self.transport.is_closing():
            self._timer = self.loop.call_later(waits_for[0], self._give_up)

    def _patience_s(self) -> float | None:
        """Return how long the client may take for what it owes; None: nothing, or the guard watches it."""
        if self._surplus:
            return self.linger_s
        if self.conn.their_state is h11.IDLE:
            return self.door.header_timeout_s
        if self.conn.their_state is h11.SEND_BODY and self.cycle.response_complete:
            return self.linger_s
        return None

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        has_begun = self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]
        if has_begun:
            self._refuse(headers_too_slow(self.door.header_timeout_s))
        else:
            self.transport.close()

    def _refuse(self, error: RequestRefused) -> None:
        """Answer without a route and close; where an answer is on its way already, only close."""
        if self.transport.is_closing():
            return
        self.metrics.refuse(error)
        if self.cycle is None or not self.cycle.response_started or self.cycle.response_complete:
            reply = error.response()
            reply.headers["connection"] = "close"
            lines = [f"HTTP/1.1 {reply.status_code} {HTTPStatus(reply.status_code).phrase}".encode()]
            lines += [name + b": " + value for name, value in reply.raw_headers]
            self.transport.write(b"\r\n".join(lines) + b"\r\n\r\n" + bytes(reply.body))
        self.transport.close()


def gateway_protocol(config: ServerConfig, admission_metrics: AdmissionMetrics) -> type[GatewayProtocol]:
    """Return the protocol of one server; uvicorn makes one of it for every connection."""

    class Configured(GatewayProtocol):
        door = config
        max_connections = config.max_connections or default_max_connections()
        metrics = admission_metrics

    return Configured
