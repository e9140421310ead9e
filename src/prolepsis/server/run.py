"""Serves until it is stopped: takes the port, starts the engine, runs uvicorn, stops without cutting answers short."""

import asyncio
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from types import FrameType

import structlog
import uvicorn
from fastapi import FastAPI

from prolepsis.control.audit.log import AuditLog
from prolepsis.control.audit.retention import text_upkeep
from prolepsis.control.store.signing import OPTION, usable_keys
from prolepsis.control.store.store import opened_store
from prolepsis.control.web.context import Context
from prolepsis.core.audit_event import SERVER, AuditEvent
from prolepsis.core.config import EngineConfig, ServerConfig
from prolepsis.core.engine_client import Demand, EngineClient, EngineInfo
from prolepsis.core.errors import ConfigError, EngineDead
from prolepsis.core.files import sha256_of
from prolepsis.core.network import end_unacknowledged, url_of
from prolepsis.core.phases import Phases, watched_phases
from prolepsis.core.plan import SpecPlan
from prolepsis.core.signals import handling_stops
from prolepsis.core.telemetry.logs import LibraryLines, configure_logs
from prolepsis.core.telemetry.metrics import Metrics
from prolepsis.engine.text.tokenizer import Tokenizer
from prolepsis.remote.engines import Engines
from prolepsis.remote.members import FailoverSettings, Member, StartClient
from prolepsis.server.admission.controller import AdmissionController
from prolepsis.server.app import build
from prolepsis.server.banner import Banner, banner_of
from prolepsis.server.front.listener import Listener, announce, check_tls
from prolepsis.server.front.protocol import http_settings
from prolepsis.server.front.waiting import waiting
from prolepsis.server.services import Services
from prolepsis.server.sources import read_sources

READINESS_POLL_S = 0.2
_DRAIN_POLL_S = 0.05
_BACKLOG = 2048
_LAST_OF_A_START_S = 1.5  # after a signal: a compiler or a pass under way is not waited for
ABORT_GRACE_S = 2.0
"""After the stop's own bound: time for aborted requests to reach their clients."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class StartedEngine:
    client: EngineClient
    tokenizer: Tokenizer
    compile_seconds: Sequence[float] = ()
    restart: StartClient | None = None  # starts another engine in its place after it ended
    follow: Callable[[Callable[[], Demand]], None] | None = None
    """Is given what says the demand, where the number of engines follows it."""


StartEngine = Callable[[EngineConfig, Metrics], StartedEngine]
"""Loads the model and starts the engine; `Metrics` is the observer of its steps and requests."""


def serve(
    engine_config: EngineConfig,
    server_config: ServerConfig,
    start_engine: StartEngine,
    on_ready: Callable[[Banner], None] = lambda banner: None,
) -> None:
    """Serve until SIGINT or SIGTERM, then let requests in flight end, aborting them after `shutdown_s`.

    The port is open from the beginning: until the application takes it over, replies say what the start is doing.
    Then a signal ends the process at once, SIGTERM with status 0 and SIGINT by `KeyboardInterrupt`.

    Raises `ConfigError` where the address cannot be taken, TLS cannot be set up, what `application` raises, and
    `EngineDead` after an end for which the engine is the reason: it ended, and no other takes its place.
    """
    if not structlog.is_configured():
        configure_logs()
    with bind(server_config) as listener:
        server_config = server_config.model_copy(update={"port": listener.getsockname()[1]})  # where it was 0
        check_tls(server_config)
        try:
            listener.listen(_BACKLOG)
        except OSError as error:  # another process that had bound the same port began to listen first
            raise _cannot_listen(server_config, error) from None
        phases = watched_phases() or Phases()
        with (
            _signals_end_start(phases),
            waiting(listener, server_config, phases) as first,
            application(engine_config, server_config, start_engine) as app,
        ):
            services: Services = app.state.services
            listener.on_refusal = services.admission.metrics.refuse
            announce(server_config, services.keys)
            server = StoppingServer(app, services.client, server_config, first.hand_over, on_ready)
            with handling_stops(signal.SIG_IGN):  # uvicorn raises the signal that stopped it again: no failure
                server.run(sockets=[listener])
    if server.engine_gone is not None:
        raise server.engine_gone


@contextmanager
def application(
    engine_config: EngineConfig, config: ServerConfig, start_engine: StartEngine, others: Sequence[Services] = ()
) -> Iterator[FastAPI]:
    """Make the application of a server around the engine that `start_engine` returns; the store closes at the end.

    `others` as for `build`.

    Raises `ConfigError`, before anything is loaded, if the address needs keys and there are none, or if policy, flags,
    prices, traces, Alertmanager, output policies or store cannot be used. Raises what `start_engine` raises.
    """
    sources, metrics = read_sources(config), Metrics(config.metrics_tenants)
    options, upkeep = {OPTION: usable_keys(config)}, text_upkeep(config)
    with opened_store(config, metrics.registry, options=options, upkeep=upkeep) as store:
        began = time.monotonic()
        engine = start_engine(engine_config, metrics)
        if engine.restart is not None and config.engine_restarts:  # a client that restarts it and goes on with requests
            settings = FailoverSettings(max_restarts=config.engine_restarts)
            members = [Member(engine.client, engine.restart)]
            engine = replace(engine, client=Engines(members, metrics.registry, settings))
        metrics.startup.loaded(time.monotonic() - began, engine.compile_seconds)
        if (phases := watched_phases()) is not None:
            metrics.startup.took(phases.seconds)
        context = Context(
            config=config,
            engine=engine_config,
            client=engine.client,
            metrics=metrics,
            store=store,
            emit=AuditLog(store.writer).record,
            base_plan=SpecPlan(num_speculative_tokens=engine_config.num_speculative_tokens),
        )
        context.emit(_started(engine.client.info, engine_config, config))
        app = build(context, engine.tokenizer, sources, others=others)
        if engine.follow is not None:
            admission: AdmissionController = app.state.admission
            engine.follow(lambda: admission.demand)
        yield app
        context.emit(AuditEvent(actor=SERVER, action="server.stopped"))


def _started(info: EngineInfo, engine: EngineConfig, server: ServerConfig) -> AuditEvent:
    """Return the event that says what serves, with which configuration and with which content of the files it names."""
    files = {name: sha256_of(path) for name, path in server if isinstance(path, Path) and path.is_file()}
    after = {"engine": engine.model_dump(mode="json"), "server": server.model_dump(mode="json"), "sha256": files}
    return AuditEvent(actor=SERVER, action="server.started", after=after, versions=info.versions)


def bind(config: ServerConfig) -> Listener:
    """Take the address without listening yet; raises `ConfigError` naming it where that fails."""
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise ConfigError(
            f"host {config.host!r} is not an address of this machine: {error.strerror}", param="host"
        ) from None
    listener = Listener(family, kind, protocol, tls=config.tls_certificate is not None)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    end_unacknowledged(listener, config.limits.write_timeout_s)  # what is left of an answer when its route has ended
    try:
        listener.bind(target)
    except OSError as error:
        listener.close()
        raise _cannot_listen(config, error) from None
    return listener


def _cannot_listen(config: ServerConfig, error: OSError) -> ConfigError:
    message = f"cannot listen on {config.host}:{config.port}: {error.strerror}; choose another port"
    return ConfigError(message, param="port")


class StoppingServer(uvicorn.Server):
    """uvicorn that says what is still being prepared, and whose stop has a bound."""

    def __init__(
        self,
        app: FastAPI,
        client: EngineClient,
        config: ServerConfig,
        on_listening: Callable[[], None] = lambda: None,
        on_ready: Callable[[Banner], None] = lambda banner: None,
    ) -> None:
        """`on_listening` is called once connections are accepted here, `on_ready` once requests are served."""
        super().__init__(http_settings(app, config, app.state.admission.metrics, lifespan="on"))
        self.config.timeout_graceful_shutdown = int(ABORT_GRACE_S) + 1
        LibraryLines.take_over("uvicorn.error", "http_server")
        self._client = client
        self._gate: AdmissionController = app.state.admission
        self._shutdown_s = config.shutdown_s
        self._on_listening, self._on_ready = on_listening, on_ready
        self._banner = partial(banner_of, config, keys_required=app.state.services.keys.required)
        self._background: set[asyncio.Task[None]] = set()
        self.engine_gone: EngineDead | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_listening()
        for listener in sockets or []:
            host, port = listener.getsockname()[:2]
            log.info("listening", url=url_of(host, port, tls=self.config.ssl is not None))
        self._start(self._report_readiness())
        self._start(self._end_without_engine())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._drain()
        await super().shutdown(sockets)
        for task in self._background:
            task.cancel()

    async def _drain(self) -> None:
        """Refuse what is new, while readiness says so on the open port, until all that waits or runs has ended.

        Requests that have not ended within the bound are aborted, so that every client gets an end.
        """
        self._gate.drain()
        log.info("stopping", requests_in_flight=self._gate.num_inside)
        end = time.monotonic() + self._shutdown_s
        while self._gate.num_inside and time.monotonic() < end and not self.force_exit:  # noqa: ASYNC110
            await asyncio.sleep(_DRAIN_POLL_S)
        if self._gate.num_inside:
            log.warning("aborting", requests_in_flight=self._gate.num_inside)
        self._gate.end_waiting()
        await self._client.close()

    def _start(self, work: Coroutine[object, object, None]) -> None:
        self._background.add(asyncio.ensure_future(work))

    async def _report_readiness(self) -> None:
        said = ""
        while not (health := self._client.health()).ready:
            if health.detail != said:
                said = health.detail
                log.info("preparing", detail=said)
            await asyncio.sleep(READINESS_POLL_S)
        banner = self._banner(self._client.info)
        sampling = self._client.info.default_sampling.describe()
        log.info("ready", **asdict(banner), default_sampling=sampling, detail=health.detail)
        self._on_ready(banner)

    async def _end_without_engine(self) -> None:
        """Stop once the engine has ended for good: its supervisor can start another, and sees why."""
        while (health := self._client.health()).alive:  # noqa: ASYNC110  engines do not report their end
            await asyncio.sleep(READINESS_POLL_S)
        if not self.should_exit:
            log.error("engine_gone", detail=health.detail)
            self.engine_gone = EngineDead(f"the server stopped, as its engine is gone: {health.detail}")
            self.should_exit = True


def _signals_end_start(phases: Phases) -> AbstractContextManager[None]:
    """While an engine starts, let SIGINT interrupt and SIGTERM end the process, within a bound and with one line."""

    def end(number: int, _: FrameType | None) -> None:
        log.warning("interrupted", phase=phases.current.describe())
        status = 0 if number == signal.SIGTERM else 128 + number
        last = threading.Timer(_LAST_OF_A_START_S, os._exit, (status,))
        last.daemon = True
        last.start()
        raise SystemExit(0) if number == signal.SIGTERM else KeyboardInterrupt

    return handling_stops(end)
