"""Items of one owner that failed in a loop over those of all: each is left out and named, and the others go on."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import structlog
from prometheus_client import CollectorRegistry

from prolepsis.control.web.feature import Feature
from prolepsis.core.clock import SteadyClock
from prolepsis.core.errors import ProlepsisError, StoreUnavailable
from prolepsis.core.telemetry.declare import gauge

KINDS = ("corpora", "batches", "responses", "silences")  # what goes over items of all owners
FIRST_WAIT_S, LONGEST_WAIT_S = 2.0, 3600.0
T = TypeVar("T")
R = TypeVar("R")
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedItem:
    """Times are Unix times."""

    kind: str  # one of `KINDS`
    item: str
    owner: str  # its tenant; of a silence the rollout's rule
    error: str
    since: float
    due: float  # time of the next attempt; the waits grow up to an hour


class Skipped:
    """Contains failures by item. Belongs to one event loop."""

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self._clock = clock or SteadyClock()
        self._items: dict[tuple[str, str], SkippedItem] = {}

    @property
    def all(self) -> list[SkippedItem]:
        """The items, the first to fail first."""
        return sorted(self._items.values(), key=lambda one: one.since)

    def error_of(self, kind: str, item: str) -> str | None:
        found = self._items.get((kind, item))
        return found.error if found else None

    def due(self, kind: str, items: Iterable[T], name: Callable[[T], str]) -> list[T]:
        """Return the items of a kind without those that wait; what is no longer among them is forgotten."""
        given, now = {(kind, name(item)): item for item in items}, self._clock()
        self._items = {key: one for key, one in self._items.items() if key[0] != kind or key in given}
        return [item for key, item in given.items() if key not in self._items or self._items[key].due <= now]

    @contextmanager
    def contained(self, kind: str, item: str, owner: str) -> Iterator[None]:
        """Run the block for one item; what it raises is noted. A store that is unavailable is no fault of the item."""
        try:
            yield
        except StoreUnavailable:
            raise
        except Exception as error:  # contained: the items of other owners go on
            now, reason = self._clock(), str(error) if isinstance(error, ProlepsisError) else type(error).__name__
            known = self._items.get((kind, item))
            since = known.since if known else now
            wait_s = min(LONGEST_WAIT_S, max(FIRST_WAIT_S, 2 * (now - since)))
            new = SkippedItem(kind=kind, item=item, owner=owner, error=reason, since=since, due=now + wait_s)
            self._items[kind, item] = new
            if known is None:
                is_ours = not isinstance(error, ProlepsisError)
                log.error("item_skipped", kind=kind, item=item, owner=owner, error=reason, exc_info=is_ours)
        else:
            self._items.pop((kind, item), None)


def apart(
    work: Callable[[Sequence[T]], Iterable[R]], items: Sequence[T], failed: Callable[[T, Exception], Iterable[R]]
) -> list[R]:
    """Return what `work` makes of all items at once; where it fails, of each alone, and `failed` of one that fails."""
    try:
        return list(work(items))
    except StoreUnavailable:
        raise
    except Exception as error:  # contained: the items of other owners go on
        if len(items) == 1:
            return list(failed(items[0], error))
        return [made for item in items for made in apart(work, [item], failed)]


class SkippedFeature(Feature):
    """Shows and counts what is skipped."""

    name = "skipped"
    period_s = 1.0

    def __init__(self, skipped: Skipped, registry: CollectorRegistry) -> None:
        self._skipped = skipped
        self.health_parts = {"skipped": self._shown}
        text = (
            "Items that background work leaves out, as they failed, until the next try (GET /admin/health names them)"
        )
        self._gauge = gauge(registry, "skipped_items", text, "kind")

    def _shown(self) -> list[SkippedItem]:
        return self._skipped.all

    async def tick(self) -> None:
        counts = Counter(one.kind for one in self._skipped.all)
        for kind in KINDS:
            self._gauge.labels(kind).set(counts[kind])
