"""The items that wait for the store's writer, and their metrics."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import ClassVar, Literal, Protocol, Self, get_args

from prometheus_client import CollectorRegistry
from sqlalchemy import Connection

from prolepsis.core.telemetry.declare import counter, gauge

Kind = Literal["request", "retry", "example", "audit"]
KINDS: tuple[Kind, ...] = ("request", "retry", "example", "audit")
"""In the order in which a batch is written: audit entries last, because they hold the end of their chain."""
DropReason = Literal["queue_full", "refused", "closed"]


class Begun(Protocol):
    """What a request of a tenant (empty: of none) that began at a Unix time comes to."""

    __slots__ = ()

    @property
    def tenant(self) -> str: ...

    @property
    def began_at(self) -> float: ...


class QueueItem(Begun, ABC):
    """An item that the writer's thread prepares, and then writes in one transaction with others of its kind."""

    __slots__ = ()

    kind: ClassVar[Kind]
    is_slow: bool = False  # preparing it takes milliseconds, so a batch has few such items

    def prepare(self) -> None:  # most items need no preparation
        """Do the work that needs no database; called before the transaction."""

    def written(self) -> None:  # most items need nothing more
        """Do what follows from being on disk; called after the transaction."""

    @classmethod
    @abstractmethod
    def write(cls, connection: Connection, items: Sequence[Self]) -> None:
        """Write items; a batch that failed is written again."""


@dataclass(frozen=True, slots=True)
class StoreHealth:
    ok: bool  # the last attempt to write succeeded
    detail: str  # the error of the last attempt, if it failed
    num_queued: int
    written: Mapping[Kind, int]  # on disk, since the start of this process
    dropped: Mapping[Kind, int]  # lost, since the start of this process


class StoreMetrics:
    """`kind` is request, retry, example or audit."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.written = counter(registry, "store_written", "Items on disk", "kind")
        self.dropped = counter(registry, "store_dropped", "Items lost, by reason", "kind", "reason")
        for kind, reason in product(KINDS, get_args(DropReason)):
            self.dropped.labels(kind, reason)  # an alert on a rise needs the 0 before it
        self.failures = counter(registry, "store_failures", "Attempts to write that failed")
        self.queued = gauge(registry, "store_queued_items", "Items that wait to be written")
        self.up = gauge(registry, "store_up", "1 if the last attempt to write succeeded, 0 if it failed")
