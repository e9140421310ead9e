"""The registry of replicas: each server says in the store that it is there, and shows all that do."""

import asyncio
import os
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal, get_args
from uuid import uuid4

import structlog
from prometheus_client import CollectorRegistry
from pydantic import TypeAdapter, ValidationError

from prolepsis import __version__
from prolepsis.control.replicas.commands import REPLICAS
from prolepsis.control.store import documents as of
from prolepsis.control.store.database import StoreTable
from prolepsis.control.store.documents import Documents, StoredDocument
from prolepsis.control.web.context import Context
from prolepsis.control.web.feature import Feature
from prolepsis.control.web.routes import WATCHERS, shown
from prolepsis.core.config import ServerConfig
from prolepsis.core.engine_client import EngineClient, EngineMember
from prolepsis.core.errors import StoreUnavailable
from prolepsis.core.exact_group import ExactGroup
from prolepsis.core.json_value import computed
from prolepsis.core.network import EVERYWHERE, url_of
from prolepsis.core.telemetry.declare import gauge

KEEP_S = 5.0
LOST_S = 15.0  # a replica that has not been seen for so long is taken for lost
FORGOTTEN_S = 600.0  # one that has not been seen for so long is deleted
PATIENCE_S = 1.0  # how long a tick waits for the store; a slower one continues after it

State = Literal["starting", "ready", "draining", "lost"]
STATES: tuple[State, ...] = get_args(State)

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaReply:
    """A server of this store."""

    replica: str
    here: bool  # it is the one that answers
    state: State
    address: str
    region: str
    model: str
    version: str
    group: ExactGroup
    started_at: float  # Unix time in seconds, by the clock of the store
    seen_s_ago: float
    engines: tuple[EngineMember, ...]  # behind this front end, where they are in other processes

    @computed
    def exact_group(self) -> str:
        """Replicas of one group continue each other's streams to the bit."""
        return self.group.digest


@dataclass(frozen=True, slots=True)
class ReplicasReply:
    shared: bool  # they share a store; without one a server knows of itself only
    replicas: list[ReplicaReply]
    fault: str | None = None
    """Reason why the store cannot be read; the other servers are then shown as last seen."""


_REPLY: TypeAdapter[ReplicaReply | None] = TypeAdapter(ReplicaReply | None)


def _read(text: str) -> ReplicaReply | None:
    """Return a server as it describes itself; None for one of another version, which does so otherwise."""
    with suppress(ValidationError):
        return _REPLY.validate_json(text)
    return None


Seen = Sequence[StoredDocument[ReplicaReply | None]]


class ReplicaTable(StoreTable):
    _replicas = Documents("replica", _read, lambda replica: _REPLY.dump_json(replica).decode())
    """By name; `at`: when it was last seen, by the clock of the database."""

    def keep(self, own: ReplicaReply) -> tuple[float, Seen]:
        """Record that a server is running; return the time there and all servers, the longest running first."""
        with self._database.write() as connection:
            now = self._now(connection)
            before = self._replicas.get(connection, own.replica)
            started_at = before.value.started_at if before and before.value else now
            self._replicas.put(connection, [StoredDocument(own.replica, replace(own, started_at=started_at), now)])
            self._replicas.remove(connection, of.at < now - FORGOTTEN_S)
            documents = self._replicas.list(connection)
        return now, sorted(documents, key=lambda document: document.value.started_at if document.value else document.at)

    def leave(self, replica: str) -> None:
        """Remove a server that stops."""
        with self._database.write() as connection:
            self._replicas.remove(connection, of.key == replica)


class ReplicaRegistry(Feature):
    """Belongs to one event loop; blocking work runs in threads."""

    name = "replicas"
    period_s = KEEP_S
    ticks_before_serving = True

    def __init__(
        self,
        table: ReplicaTable,
        client: EngineClient,
        config: ServerConfig,
        registry: CollectorRegistry,
        *,
        is_draining: Callable[[], bool],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`clock`: Unix time in seconds."""
        self.replica = f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:4]}"
        """Its name, which ends with it."""
        self.routes = shown(REPLICAS.path, WATCHERS, REPLICAS.help, self.shown)
        self._table = table
        self._client = client
        self._address = address_of(config)
        self._region = config.region
        self._is_draining = is_draining
        self._clock = clock
        self._started = clock()
        self._seen: Seen = ()
        self._store_time = 0.0
        self._seen_at = clock()
        self._fault: str | None = None
        self._keeping: asyncio.Task[None] | None = None
        text = "Servers that share the store, as this one sees them; take the maximum over servers"
        self._number = gauge(registry, "replicas", text, "exact_group", "state")

    @property
    def num_sharing(self) -> int:
        """How many servers share the store, this one included, as last known: a store that is away loses none."""
        return 1 + sum(seen.key != self.replica and self._store_time - seen.at < LOST_S for seen in self._seen)

    @property
    def addresses(self) -> list[str]:
        """URLs of the servers that share the store, as last known."""
        return [replica.address for replica in self.shown().replicas if replica.here or replica.state != "lost"]

    def shown(self) -> ReplicasReply:
        """Return all replicas, the longest running first."""
        age_s, own = self._clock() - self._seen_at, self._own()
        replicas = []
        for seen in self._seen:
            if (reported := seen.value) is None:
                continue
            seen_s_ago = max(0.0, self._store_time - seen.at) + age_s
            state: State = "lost" if seen_s_ago >= LOST_S else reported.state
            aged = replace(reported, here=False, seen_s_ago=seen_s_ago, state=state)
            replicas.append(replace(own, started_at=reported.started_at) if seen.key == own.replica else aged)
        if not any(replica.here for replica in replicas):
            replicas.append(own)
        return ReplicasReply(self._table.is_shared, replicas, self._fault)

    async def tick(self) -> None:
        """Say that this server is there, and see who else is."""
        if self._keeping is None or self._keeping.done():
            self._keeping = asyncio.create_task(self._keep())
        await asyncio.wait({self._keeping}, timeout=PATIENCE_S)
        self._number.clear()
        for replica in self.shown().replicas:
            self._number.labels(replica.exact_group, replica.state).inc()

    async def close(self) -> None:
        """Leave the registry; an entry that stays ages out."""
        if self._keeping is not None:
            await asyncio.wait({self._keeping}, timeout=PATIENCE_S)
        try:
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.to_thread(self._table.leave, self.replica)
        except (StoreUnavailable, TimeoutError) as error:
            log.debug("replica_not_removed", error=str(error))

    async def _keep(self) -> None:
        try:
            now, seen = await asyncio.to_thread(self._table.keep, self._own())
        except StoreUnavailable as error:  # contained: the registry continues with what it knows
            if self._fault is None:
                log.error("store_failed", feature=self.name, error=str(error))
            self._fault = str(error)
            return
        self._store_time, self._seen, self._seen_at, self._fault = now, seen, self._clock(), None

    def _own(self) -> ReplicaReply:
        info, health = self._client.info, self._client.health()
        return ReplicaReply(
            replica=self.replica,
            here=True,
            state="draining" if self._is_draining() else "ready" if health.ready else "starting",
            address=self._address,
            region=self._region,
            model=info.model,
            version=__version__,
            group=info.exact_group,
            started_at=self._started,
            seen_s_ago=0.0,
            engines=health.members,
        )


def address_of(config: ServerConfig) -> str:
    """Return the URL by which other machines reach a server: one that listens everywhere, by the machine's name."""
    host = socket.gethostname() if config.host in EVERYWHERE else config.host
    return url_of(host, config.port, tls=config.tls_certificate is not None)


def feature(context: Context, is_draining: Callable[[], bool]) -> ReplicaRegistry:
    """Return the registry of the servers that share the store."""
    table = ReplicaTable(context.database)
    return ReplicaRegistry(
        table, context.client, context.config, context.registry, is_draining=is_draining, clock=context.wall
    )
