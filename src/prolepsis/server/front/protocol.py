"""The HTTP/1.1 of the server: uvicorn's, with bounds on slow clients and on connections, and strict about the head."""

import asyncio
import socket
from collections import OrderedDict
from typing import Any, ClassVar, Literal

import h11
from starlette.types import ASGIApp
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from prolepsis.control.web.errors import RequestRefused
from prolepsis.control.web.intake import Reading
from prolepsis.control.web.refusals import headers_too_slow, invalid_http, too_many_connections
from prolepsis.core.config import ServerConfig
from prolepsis.server.admission.metrics import AdmissionMetrics
from prolepsis.server.front.listener import connection_limit
from prolepsis.server.front.request_head import StrictConnection

LOOK_FOR_RESET_S = 0.1
"""How often the socket of a client that sends nothing further is asked whether the client is gone."""


class GatewayProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 with a bound on connections and on every wait for a client; refusals have OpenAI's shape.

    Where there are as many connections as may be, a new one takes the place of the one that has been silent for
    longest, so that silent connections lock no client out.

    A client that closes its direction after its request gets its answer. One clock a connection: a request's head has
    to be whole within `header_timeout_s` of the connection's start or of the answer before, the rest of a body within
    `linger_s` of its answer, however steadily bytes trickle in. While a route reads a body the guard has its own clock.
    """

    settings: ClassVar[ServerConfig]
    reading: ClassVar[Reading]  # the time that requests on their way in may take, over all connections
    max_connections: ClassVar[int]
    silent: ClassVar["OrderedDict[GatewayProtocol, None]"]
    """Connections whose next request has not come whole, by the time since which they owe its head."""
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
        self.conn: StrictConnection = StrictConnection(config.h11_max_incomplete_event_size, self.reading.has_to_wait)
        self._goes_on = False
        """What has come is looked at further in the next slice."""
        self._has_ended = False
        """The client has closed its direction, which counts once all that came before has been looked at."""
        self._surplus = False
        self._refused = False
        """The last reply is out; what still comes is dropped."""
        self._sends_no_more = False
        self._waits_for: tuple[float | None, object] = (None, None)
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        self._surplus = len(self.connections) >= self.max_connections and not self._take_place()
        super().connection_made(transport)
        if self._surplus:
            self.connections.discard(self)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.silent.pop(self, None)
        self._stop_timer()

    def _take_place(self) -> bool:
        """Close the connection that has been silent for longest; return whether there was one."""
        longest = next((connection for connection in self.silent if not connection._goes_on), None)
        if longest is None:
            return False
        del self.silent[longest]
        self.connections.discard(longest)
        longest.transport.close()
        return True

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        if self._surplus:  # not answered earlier: the reset would drop a reply that comes before its request
            self._refuse(too_many_connections(self.max_connections))
            return
        super().data_received(data)
        self._watch()

    def handle_events(self) -> None:
        """Look at what has come, a slice at a time: many small requests or parts of a body stall no other client."""
        if self._goes_on:
            return
        super().handle_events()
        if self.conn.is_behind and not self._refused:
            self._goes_on = True
            self.transport.pause_reading()
            self.reading.later(self.client[0] if self.client else "", self._go_on)

    def _go_on(self) -> None:
        self._goes_on = False
        if not self._refused and not self.transport.is_closing():
            self.handle_events()
            self._watch()
        if self._goes_on:
            return
        if not self.flow.read_paused:
            self.transport.resume_reading()
        if self._has_ended and not self.eof_received():
            self.transport.close()

    def eof_received(self) -> bool:  # type: ignore[override]  # asyncio keeps the connection open for True
        """Keep the connection where a whole request waits for its answer; over TLS asyncio closes it in any case."""
        self._has_ended = self._goes_on
        if self._has_ended:
            return True
        self._sends_no_more = self._is_answering() and self.scheme == "http"
        if self._sends_no_more:
            if self.cycle.response_started:
                self.cycle.message_event.set()  # the route receives an empty part of the body
            elif self.scope["http_version"] == "1.1":
                # a client that is gone answers it with a reset; one that only closed its direction skips it (RFC 9110)
                self.transport.write(self.conn.send(h11.InformationalResponse(status_code=100, headers=[])) or b"")
            self._look_for_reset()
        return self._sends_no_more

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._sends_no_more and not self._is_answering():
            self.transport.close()
        self._watch()

    def shutdown(self) -> None:
        if self._refused:
            self.transport.close()
        else:
            super().shutdown()

    def send_400_response(self, msg: str) -> None:
        self._refuse(self.conn.refusal or invalid_http(msg))

    def _is_answering(self) -> bool:
        """Return whether a request that came whole has not got all of its answer."""
        return self.cycle is not None and not self.cycle.more_body and not self.cycle.response_complete

    def _look_for_reset(self) -> None:
        """End the connection of a client that is gone; while nothing is read, only the socket knows of its reset."""
        if self.transport.is_closing():
            return
        if self.transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.transport.abort()
        else:
            self.loop.call_later(LOOK_FOR_RESET_S, self._look_for_reset)

    def _watch(self) -> None:
        """Restart the clock when the client owes something else."""
        if self._refused:
            return
        waits_for = (self._patience_s(), self.cycle)
        if waits_for == self._waits_for:
            return
        self._waits_for = waits_for
        self.silent.pop(self, None)
        if self.conn.their_state is h11.IDLE and not self._surplus:
            self.silent[self] = None
        self._stop_timer()
        if waits_for[0] is not None and not self.transport.is_closing():
            self._timer = self.loop.call_later(waits_for[0], self._give_up)

    def _patience_s(self) -> float | None:
        """Return how long the client may take for what it owes; None: nothing, or the guard watches it."""
        if self._surplus:
            return self.linger_s
        if self.conn.their_state is h11.IDLE:
            return self.settings.limits.header_timeout_s
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
            self._refuse(headers_too_slow(self.settings.limits.header_timeout_s))
        else:
            self.transport.close()

    def _refuse(self, error: RequestRefused) -> None:
        """Answer without a route and close; where an answer is on its way already, only close."""
        if self.transport.is_closing():
            return
        self.metrics.refuse(error)
        if self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete:
            self.transport.close()
            return
        self.transport.write(error.last_reply())
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self._close_after_reading()

    def _close_after_reading(self) -> None:
        """Stop sending; close when the client does or after a while: closing with unread bytes resets the reply."""
        self._refused = True
        self._stop_timer()
        if not self.transport.can_write_eof():
            self.transport.close()
            return
        self.transport.write_eof()
        self.flow.resume_reading()
        self._timer = self.loop.call_later(self.linger_s, self.transport.close)


def gateway_protocol(config: ServerConfig, admission_metrics: AdmissionMetrics) -> type[GatewayProtocol]:
    """Return the protocol of one server; uvicorn makes one of it for every connection."""

    class Configured(GatewayProtocol):
        settings = config
        silent: ClassVar[OrderedDict[GatewayProtocol, None]] = OrderedDict()
        reading = Reading()
        max_connections = connection_limit(config)
        metrics = admission_metrics

    return Configured


def http_settings(
    app: ASGIApp, config: ServerConfig, metrics: AdmissionMetrics, *, lifespan: Literal["on", "off"]
) -> Config:
    """Return the settings of uvicorn around an application."""
    return Config(
        app,
        log_config=None,
        access_log=False,
        lifespan=lifespan,
        http=gateway_protocol(config, metrics),
        ws="none",
        server_header=False,
        ssl_certfile=config.tls_certificate,
        ssl_keyfile=config.tls_key,
        h11_max_incomplete_event_size=2 * config.limits.max_header_bytes,  # larger: no reply names the limit
    )
