"""Examples to learn from, in the store: token ids of requests whose tenant and caller agreed."""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from sqlalchemy import Connection

from prolepsis.control.store.database import Database
from prolepsis.control.store.queue import Kind, QueueItem
from prolepsis.core.learning import Example


@dataclass(frozen=True, slots=True)
class ExampleTotals:
    """Examples of one tenant and traffic class of a rule; none of them is opened to know this."""

    rule: str
    tenant: str
    traffic_class: str
    number: int
    num_tokens: int
    num_bytes: int
    first_at: float
    last_at: float


@dataclass(frozen=True, slots=True)
class ExampleBounds:
    """What is kept of a rule's examples; the store knows no policy."""

    days: float
    num_bytes: int
    tenants: frozenset[str]  # those who agree now


@dataclass(frozen=True, slots=True)
class ExampleItem(QueueItem):
    """An example on its way: it is made, and sealed, by the writer's thread."""

    kind: ClassVar[Kind] = "example"

    make: Callable[[], Example | None]
    """Returns None where nothing is to be kept."""
    tenant: str
    began_at: float
    told: Callable[[str], None]
    """Hears "kept" once the example is on disk."""
    is_slow: bool = True

    @classmethod
    def write(cls, connection: Connection, items: Sequence[Self]) -> None:
        raise NotImplementedError


class ExampleTable:
    """Calls wait for the database and may raise `StoreUnavailable`; none belongs on an event loop."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        raise NotImplementedError

    def read(self, rule: str, *, since: float = 0.0, tenants: Collection[str] | None = None) -> Iterator[Example]:
        """Yield a rule's examples, oldest first, of `tenants` or of all; those that cannot be opened are skipped."""
        raise NotImplementedError

    def totals(self) -> Sequence[ExampleTotals]:
        raise NotImplementedError

    def prune(self, bounds: Mapping[str, ExampleBounds]) -> int:
        """Delete what is too old, too much or of tenants that no longer agree, by rule; return the number deleted.

        Of what is too much the oldest of the largest class go first. Rules that `bounds` lacks keep nothing.
        """
        raise NotImplementedError
