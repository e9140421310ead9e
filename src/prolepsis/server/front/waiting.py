"""Answers on the open port while the application is not there yet: the process lives, and what its start is doing."""

import asyncio
import math
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial

import uvicorn
from fastapi.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from prolepsis.control.web.errors import RequestRefused
from prolepsis.core.config import ServerConfig
from prolepsis.core.phases import Phases
from prolepsis.core.telemetry.declare import MetricsRegistry
from prolepsis.server.admission.metrics import AdmissionMetrics
from prolepsis.server.front.listener import Listener
from prolepsis.server.front.protocol import http_settings

READINESS_PATHS = ("/health/ready", "/health", "/ping")
_RETRY_AFTER_S = 5.0  # where nothing says how long the phase under way takes
_LONGEST_RETRY_S = 60.0
_HAND_OVER_S = 2.0  # most that the other thread is waited for, while the thread that loads holds the interpreter
_READ_S, _READ_BYTES = 2.0, 1 << 20  # of a request, before its reply
_LAST_REPLIES_S = 10.0
"""For connections that came before the application took over."""


class WaitingApp:
    """The ASGI application of a start: the state of the process, and 503 for all else."""

    def __init__(self, phases: Phases) -> None:
        self._phases = phases

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await _read(receive)
        reply = self._reply(scope["path"])
        reply.headers["connection"] = "close"  # the next request has to reach who takes over
        await reply(scope, receive, send)

    def _reply(self, path: str) -> Response:
        phase = self._phases.current
        if path == "/health/live":
            return JSONResponse({"live": True, "detail": phase.describe()})
        if path in READINESS_PATHS:
            return JSONResponse({"ready": False, "detail": phase.describe()}, 503, {"retry-after": self._retry_after()})
        message = f"The server is starting: {phase.describe()}. Send the request again when /health/ready says 200."
        headers = {"retry-after": self._retry_after()}
        return RequestRefused(message, code="loading", status=503, headers=headers).response()

    def _retry_after(self) -> str:
        left_s = self._phases.current.left_s
        return str(math.ceil(min(_RETRY_AFTER_S if left_s is None else max(1.0, left_s), _LONGEST_RETRY_S)))


async def _read(receive: Receive) -> None:
    """Take the request's body: a connection that is closed before it came would be reset, and the reply lost."""
    num_bytes = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(_READ_S):
            while num_bytes < _READ_BYTES and (message := await receive()).get("more_body"):
                num_bytes += len(message["body"])


class WaitingServer(uvicorn.Server):
    """uvicorn around `WaitingApp`, in a thread: the thread that loads stays the one that signals interrupt."""

    def __init__(self, config: ServerConfig, phases: Phases) -> None:
        metrics = AdmissionMetrics(MetricsRegistry())
        super().__init__(http_settings(WaitingApp(phases), config, metrics, lifespan="off"))
        self._loop: asyncio.AbstractEventLoop | None = None  # while it accepts
        self._accepting = threading.Event()
        self._own: socket.socket | None = None
        self._thread: threading.Thread | None = None

    def begin(self, listener: Listener) -> None:
        """Answer what comes to `listener`, by a descriptor of its own: that of the listener stays open."""
        self._own = socket.socket(listener.family, listener.type, listener.proto, os.dup(listener.fileno()))
        run = partial(asyncio.run, self.serve([self._own]))
        self._thread = threading.Thread(target=run, name="waiting-server", daemon=True)
        self._thread.start()
        self._accepting.wait(_HAND_OVER_S)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._loop = asyncio.get_running_loop()
        self._accepting.set()

    def hand_over(self) -> None:
        """Accept no more: what comes from now on is left to who listens too. Connections so far get their replies."""
        stopped = threading.Event()

        def stop() -> None:  # a server that is closed would drop what it has just accepted
            if self._own is not None:
                asyncio.get_running_loop().remove_reader(self._own)
            self.should_exit = True
            stopped.set()

        loop, self._loop = self._loop, None
        if loop is not None:
            loop.call_soon_threadsafe(stop)
            stopped.wait(_HAND_OVER_S)

    def end(self) -> None:
        """Hand over, and wait a little for the last replies."""
        self.hand_over()
        if self._thread is not None:
            self._thread.join(_HAND_OVER_S)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Wait for the last replies; a connection that has no protocol yet is a task of asyncio."""
        end = time.monotonic() + _LAST_REPLIES_S
        while self._is_busy and time.monotonic() < end:  # noqa: ASYNC110  uvicorn tells no end
            await asyncio.sleep(0.05)
        for server in self.servers:
            server.close()

    @property
    def _is_busy(self) -> bool:
        return bool(self.server_state.connections) or len(asyncio.all_tasks()) > 1


@contextmanager
def waiting(listener: Listener, config: ServerConfig, phases: Phases) -> Iterator[WaitingServer]:
    """Answer on the port while the block runs, or until it hands over."""
    server = WaitingServer(config, phases)
    server.begin(listener)
    try:
        yield server
    finally:
        server.end()
