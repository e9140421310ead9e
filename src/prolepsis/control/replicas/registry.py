"""The registry of replicas: each server says in the store that it is there, and shows all that do."""

import asyncio
import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Literal, get_args
from uuid import uuid4

import structlog
from prometheus_client import CollectorRegistry
from pydantic import TypeAdapter, ValidationError, computed_field

from prolepsis import __version__
from prolepsis.control.replicas.commands import REPLICAS
from prolepsis.control.store.replicas import ReplicaTable, SeenReplica
from prolepsis.control.web.context import Context
from prolepsis.control.web.feature import Feature
from prolepsis.control.web.routes import WATCHERS, shown
from prolepsis.core.config import ServerConfig
from prolepsis.core.engine_client import EngineClient, EngineMember
from prolepsis.core.errors import StoreUnavailable
from prolepsis.core.exact_group import ExactGroup
from prolepsis.core.network import url_of
from prolepsis.core.telemetry.declare import gauge

KEEP_S = 5.0
LOST_S = 15.0
"""A replica that has not been seen for so long is taken for lost."""
PATIENCE_S = 1.0
"""How long a tick waits for the store; a slower one continues after it."""
_EVERYWHERE = ("0.0.0.0", "::", "")  # noqa: S104
"""Hosts by which other machines cannot reach a server."""

State = Literal["starting", "ready", "draining", "lost"]
STATES: tuple[State, ...] = get_args(State)

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaFacts:
    """Description of a server by itself."""

    address: str
    region: str
    model: str
    group: ExactGroup
    version: str
    """Version of the software."""
    state: State
    engines: tuple[EngineMember, ...] = ()
    """Behind this front end, where they are in other processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaReply(ReplicaFacts):
    """A server of this store."""

    replica: str
    here: bool
    """It is the one that answers."""
    started_at: float
    """Unix time in seconds, by the clock of the store."""
    seen_s_ago: float

    @computed_field  # type: ignore[prop-decorator]
    @property
    def exact_group(self) -> str:
        """Replicas of one group continue each other's streams to the bit."""
        return self.group.digest


@dataclass(frozen=True, slots=True)
class ReplicasReply:
    shared: bool
    """They share a store; without one a server knows of itself only."""
    replicas: list[ReplicaReply]
    fault: str | None = None
    """Reason why the store cannot be read; the other servers are then shown as last seen."""


_FACTS = TypeAdapter(ReplicaFacts)
_NAMES = [field.name for field in fields(ReplicaFacts)]


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
        self._seen: Sequence[SeenReplica] = ()
        self._seen_at = clock()
        self._fault: str | None = None
        self._keeping: asyncio.Task[None] | None = None
        text = "Servers that share the store, by exact group and state"
        self._number = gauge(registry, "replicas", text, "exact_group", "state")

    @property
    def num_sharing(self) -> int:
        """How many servers share the store, this one included, as last known: a store that is away loses none."""
        others = [one for one in self._seen if one.replica != self.replica and one.seen_s_ago < LOST_S]
        return 1 + len(others)

    @property
    def addresses(self) -> list[str]:
        """URLs of the servers that share the store, as last known."""
        return [one.address for one in self.shown().replicas if one.here or one.state != "lost"]

    def shown(self) -> ReplicasReply:
        """Return all replicas, the longest running first."""
        age_s = self._clock() - self._seen_at
        listed = [self._reply(one, age_s) for one in self._seen]
        found = [one for one in listed if one is not None]
        if not any(one.here for one in found):
            facts = self._facts()
            known = {name: getattr(facts, name) for name in _NAMES}
            here = ReplicaReply(**known, replica=self.replica, here=True, started_at=self._started, seen_s_ago=0.0)
            found.append(here)
        return ReplicasReply(self._table.is_shared, found, self._fault)

    async def tick(self) -> None:
        """Say that this server is there, and see who else is."""
        if self._keeping is None or self._keeping.done():
            self._keeping = asyncio.create_task(self._keep())
        await asyncio.wait({self._keeping}, timeout=PATIENCE_S)
        self._count()

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
        facts = _FACTS.dump_json(self._facts()).decode()
        try:
            seen = await asyncio.to_thread(self._table.keep, self.replica, facts)
        except StoreUnavailable as error:  # contained: the registry continues with what it knows
            if self._fault is None:
                log.error("store_failed", feature=self.name, error=str(error))
            self._fault = str(error)
            return
        self._seen, self._seen_at, self._fault = seen, self._clock(), None

    def _facts(self) -> ReplicaFacts:
        info, health = self._client.info, self._client.health()
        return ReplicaFacts(
            address=self._address,
            region=self._region,
            model=info.model,
            group=info.exact_group,
            version=__version__,
            state="draining" if self._is_draining() else "ready" if health.ready else "starting",
            engines=health.members,
        )

    def _reply(self, seen: SeenReplica, age_s: float) -> ReplicaReply | None:
        """Return one of the store; None for one that describes itself as another version of the software would."""
        here = seen.replica == self.replica
        try:
            facts = self._facts() if here else _FACTS.validate_json(seen.facts)
        except ValidationError:
            return None
        seen_s_ago = 0.0 if here else seen.seen_s_ago + age_s
        state: State = "lost" if seen_s_ago >= LOST_S else facts.state
        known = {**{name: getattr(facts, name) for name in _NAMES}, "state": state}
        at = seen.started_at
        return ReplicaReply(**known, replica=seen.replica, here=here, started_at=at, seen_s_ago=seen_s_ago)

    def _count(self) -> None:
        self._number.clear()
        for one in self.shown().replicas:
            self._number.labels(one.exact_group, one.state).inc()


def address_of(config: ServerConfig) -> str:
    """Return the URL by which other machines reach a server: one that listens everywhere, by the machine's name."""
    host = socket.gethostname() if config.host in _EVERYWHERE else config.host
    return url_of(host, config.port, tls=config.tls_certificate is not None)


def feature(context: Context, is_draining: Callable[[], bool]) -> ReplicaRegistry:
    """Return the registry of the servers that share the store."""
    table = ReplicaTable(context.database)
    return ReplicaRegistry(
        table, context.client, context.config, context.registry, is_draining=is_draining, clock=context.wall
    )
