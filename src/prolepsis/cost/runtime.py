"""What requests cost, while serving: sums, comparisons, the price book. Belongs to one event loop."""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import structlog

from prolepsis.core.audit_event import SERVER, AuditEvent, Emit, discard
from prolepsis.core.ended import Assignment, RequestAbout, RequestEnded
from prolepsis.core.stats import ProposerMemory, RequestStats
from prolepsis.cost import price_history as stored_prices
from prolepsis.cost.comparison import Compared, Comparisons
from prolepsis.cost.meter import NO_PROPOSER, Contest, Forecast, Pace, RequestCost, Spending
from prolepsis.cost.prices import Price, PriceFile
from prolepsis.store.store import Store
from prolepsis.telemetry.cost import CostMetrics
from prolepsis.web.feature import Feature

COMPARED_FOR_S = 30.0
"""A comparison is not computed again within: its bounds take some tenths of a second."""
_NO_TENANT = "default"

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PriceInUse:
    """A price with the book that it is in."""

    price: Price
    currency: str
    version: str
    """Of the book."""

    @property
    def label(self) -> str:
        """Name it as request records do."""
        return f"{self.version}/{self.price.name}"


@dataclass(frozen=True, slots=True)
class RolloutCompared:
    """The newest stage of one rollout."""

    contest: Contest
    groups: tuple[Compared, ...]


class Costs(Feature):
    """Counts every request that an engine decoded and somebody waited for; without a price file there is no money."""

    name = "cost"
    period_s = 1.0

    def __init__(
        self,
        metrics: CostMetrics,
        *,
        prices: PriceFile | None = None,
        memory: Callable[[], Sequence[ProposerMemory]] = tuple,
        store: Store | None = None,
        emit: Emit = discard,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`memory`: of the engine's proposers; `store` keeps the price books that are used."""
        self.spending = Spending()
        self._metrics = metrics
        self._prices = prices
        self._memory = memory
        self._store = store
        self._emit = emit
        self._clock = clock
        self._pace = Pace(clock)
        self._comparisons = Comparisons()
        self._compared: tuple[RolloutCompared, ...] = ()
        self._compared_at = float("-inf")
        self._kept: str | None = None
        """Version of the book that the store holds."""
        if prices is not None:
            self._show(prices, "loaded")

    @property
    def price(self) -> PriceInUse | None:
        if self._prices is None:
            return None
        book = self._prices.value
        return PriceInUse(self._prices.price, book.currency, book.full_version)

    @property
    def memory(self) -> Sequence[ProposerMemory]:
        return self._memory()

    def on_request_end(self, ended: RequestEnded) -> None:
        """Count a request that has ended.

        A request that did not finish cost what it cost and is compared with nothing; the same holds for prompts that
        share one assignment.
        """
        about = ended.about
        for prompt in ended.prompts:
            if prompt.has_engine_stats and not prompt.is_cached and prompt.stats.device.total:
                is_compared = prompt.end == "finished" and about.num_prompts == 1
                self._observe(about, prompt.stats, is_compared=is_compared)

    def _observe(self, about: RequestAbout, stats: RequestStats, *, is_compared: bool) -> None:
        assignment = about.assignment if about.is_evidence else None
        cost = RequestCost(
            route=about.route,
            tenant=about.tenant or _NO_TENANT,
            proposer=_main_proposer(stats),
            num_output_tokens=stats.num_output_tokens,
            device=stats.device,
            contest=_contest(assignment) if is_compared else None,
            arm="canary" if assignment and assignment.arm == "canary" else "control",
        )
        self.spending.observe(cost)
        self._comparisons.observe(cost)
        arm = assignment.arm if assignment else "none"
        labels = (about.route, self.spending.known("tenant", cost.tenant), cost.proposer, arm)
        self._metrics.request(labels, cost.num_output_tokens, cost.device)

    async def tick(self) -> None:
        """Follow the price file and remember sums."""
        self._metrics.memory(self._memory())
        self._pace.look(self.spending.total)
        if self._prices is not None:
            self._follow(self._prices)
            await self._keep(self._prices)

    def forecast(self) -> Forecast | None:
        """Return what a month will cost, None in the first minute."""
        return self._pace.forecast(self.spending.total, self._prices.price if self._prices else None)

    async def compared(self) -> Sequence[RolloutCompared]:
        """Return the comparisons, at most `COMPARED_FOR_S` old."""
        if self._clock() - self._compared_at >= COMPARED_FOR_S:
            self._compared_at = self._clock()
            self._compared = await asyncio.to_thread(self._compare)
        return self._compared

    def _compare(self) -> tuple[RolloutCompared, ...]:
        newest = self._comparisons.newest.values()
        return tuple(RolloutCompared(one.contest, tuple(one.compared())) for one in newest)

    def _follow(self, prices: PriceFile) -> None:
        before = prices.value
        seen = prices.look()
        if seen.refused is not None:
            self._metrics.refused.inc()
            log.error("prices_not_reloaded", error=str(seen.refused), in_use=before.full_version)
        elif seen.changed:
            self._show(prices, "reloaded", before.content())

    def _show(self, prices: PriceFile, what: str, before: object = None) -> None:
        book, price = prices.value, prices.price
        self._metrics.priced(book.currency, price.name, book.full_version, price.per_second)
        log.info(f"prices_{what}", file=str(prices.path), version=book.full_version, price=price.name)
        self._emit(
            AuditEvent(
                actor=SERVER,
                action=f"prices.{what}",
                subject=str(prices.path),
                before=before,
                after=book.content(),
                versions={"prices": book.full_version},
            )
        )

    async def _keep(self, prices: PriceFile) -> None:
        """Keep the book in the store, once; a database that is gone is asked again at the next look."""
        book, store = prices.value, self._store
        if store is None or self._kept == book.full_version:
            return
        with suppress(Exception):  # contained: the writer says that the database is gone
            await asyncio.to_thread(_put, store, book.full_version, json.dumps(book.content(), sort_keys=True))
            self._kept = book.full_version


def _put(store: Store, version: str, content: str) -> None:
    with store.database.write() as connection:
        stored_prices.put(connection, version, content)


def _contest(assignment: Assignment | None) -> Contest | None:
    """Return what the request is compared in: only where either arm was possible for it."""
    if assignment is None or not 0.0 < assignment.share < 1.0:
        return None
    return Contest(assignment.rollout_id, assignment.run, assignment.stage, assignment.share)


def _main_proposer(stats: RequestStats) -> str:
    """Return who brought most of the accepted tokens; of those who brought none, most of the drafted ones."""
    by_worth = {(counts.num_accepted, counts.num_draft_tokens): name for name, counts in stats.proposers.items()}
    return by_worth[max(by_worth)] if by_worth else NO_PROPOSER
