"""Costs while serving: requests are counted and compared, the price book is followed, and /admin/cost shows them."""

import asyncio
import json
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Annotated
from uuid import uuid4

import structlog
from prometheus_client import CollectorRegistry
from pydantic import AwareDatetime, computed_field

from prolepsis.control.cost.commands import COST
from prolepsis.control.cost.comparison import ArmComparison, Comparison, Comparisons
from prolepsis.control.cost.device_time import DeviceCost, DevicePrice, DeviceTime
from prolepsis.control.cost.history import store_periods, store_prices
from prolepsis.control.cost.meter import (
    DIMENSIONS,
    NO_PROPOSER,
    CostForecast,
    Experiment,
    RateWindow,
    RequestCost,
    Usage,
    UsageTotals,
)
from prolepsis.control.cost.pilot import PilotReport, pilot_report
from prolepsis.control.cost.prices import Price, PriceFile
from prolepsis.control.cost.speedup import LatestModes, RouteSpeedup, speedups
from prolepsis.control.store.database import Database
from prolepsis.control.web.body_reader import read_query
from prolepsis.control.web.context import Context
from prolepsis.control.web.feature import Feature
from prolepsis.control.web.fields import Body
from prolepsis.control.web.routes import READERS, Route, Routes
from prolepsis.core.audit_event import SERVER, AuditEvent, Emit, discard
from prolepsis.core.ended import RequestAbout, RequestEnded
from prolepsis.core.facts import NO_RULE
from prolepsis.core.stats import DeviceSeconds, ProposerMemory, RequestStats
from prolepsis.core.telemetry.declare import counter, gauge
from prolepsis.core.telemetry.labels import NO_TENANT
from prolepsis.core.traffic_sums import Interval

KEPT_EVERY_S = 60.0
"""The store has the period that is not over yet up to so many seconds ago."""
COMPARED_FOR_S = 30.0
"""A comparison is computed at most this often: its bounds take some tenths of a second."""

log = structlog.get_logger(__name__)


class PriceInUse(Price):
    """The price in use, with its book."""

    currency: str
    version: str
    """Version of the price book."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def per_hour(self) -> float:
        return self.per_device_hour + sum(self.overheads.values())

    @property
    def label(self) -> str:
        """Return its name in request records."""
        return f"{self.version}/{self.name}"


@dataclass(frozen=True, slots=True)
class ComparedExperiment:
    """The newest stage of a rollout."""

    rollout: str
    run: int
    stage_number: int
    share: float
    groups: tuple[ArmComparison, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCost(ProposerMemory):
    """Bytes besides the target's; the amount is the memory's share of an hour's price."""

    amount_per_hour: float | None

    @computed_field  # type: ignore[prop-decorator]
    @property
    def total(self) -> int:
        return self.weights + self.kv + self.index


@dataclass(frozen=True, slots=True, kw_only=True)
class CostReport:
    """What the requests since the server's start cost and saved."""

    price: PriceInUse | None
    """null: no price book; device seconds only."""
    total: UsageTotals
    device: DeviceCost
    """Since the server started."""
    periods: list[DeviceCost]
    """An hour each, or less where the price changed, the newest first; `prolepsis cost history` has earlier ones."""
    by_route: list[UsageTotals]
    by_tenant: list[UsageTotals]
    by_rule: list[UsageTotals]
    by_proposer: list[UsageTotals]
    routes: list[RouteSpeedup]
    """What speculation brings on each route that had requests, in one sentence."""
    rollouts: list[ComparedExperiment]
    memory: list[MemoryCost]
    forecast: CostForecast | None
    """Forecast of a month; null in the first hour."""


class CostFeature(Feature):
    """Counts every request with engine statistics; without a price file there are no amounts of money."""

    name = "cost"
    period_s = 1.0

    def __init__(
        self,
        registry: CollectorRegistry,
        database: Database,
        *,
        prices: PriceFile | None = None,
        memory: Callable[[], Sequence[ProposerMemory]] = tuple,
        killed: Callable[[], Collection[str]] = tuple,
        emit: Emit = discard,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`clock` is monotonic, `now` Unix time; `memory` returns the memory of the proposers, `killed` the
        scopes that the kill switch stops.

        `database` keeps the price books that were used, and what the device cost.
        """
        self.usage = Usage()
        self.routes = cost_routes(self)
        self._metrics = _Metrics(registry)
        self._prices = prices
        self._memory = memory
        self._killed = killed
        self._modes = LatestModes()
        self._database = database
        self._emit = emit
        self._clock = clock
        self._now = now
        self._rates = RateWindow(clock)
        self.device_time = DeviceTime(clock, now)
        self._replica = uuid4().hex
        self._saved: DeviceCost | None = None
        """The last period that is in the store, and is over."""
        self._kept_at = clock()
        """When the period that is not over was saved."""
        self._comparisons = Comparisons()
        self._compared: tuple[ComparedExperiment, ...] = ()
        self._compared_at = float("-inf")
        self._kept: str | None = None
        """Version of the book in the store."""
        self._shown_at = float("-inf")
        if prices is not None:
            self._show(prices, "loaded")

    @property
    def price(self) -> PriceInUse | None:
        if self._prices is None:
            return None
        book = self._prices.value
        return PriceInUse(**self._prices.price.model_dump(), currency=book.currency, version=book.full_version)

    @property
    def billed_per_second(self) -> float | None:
        """The price of a device second, None where none is billed: without prices, or if it is reserved."""
        used = self.price
        return used.per_second if used is not None and used.is_billed_by_time else None

    def on_request_end(self, ended: RequestEnded) -> None:
        """Count a request that has ended.

        A request that did not finish is counted but not compared; the same holds for prompts that share an assignment.
        """
        about = ended.about
        for prompt in ended.prompts:
            if prompt.answer in ("complete", "cut") and prompt.stats.device.total:
                is_compared = prompt.end == "finished" and prompt.stats.num_output_tokens > 0
                self._observe(about, prompt.stats, is_compared=is_compared)

    def _observe(self, about: RequestAbout, stats: RequestStats, *, is_compared: bool) -> None:
        assignment = about.assignment if about.is_evidence else None
        amount = self.device_time.charge(stats.device.total, stats.compute_s or 0.0, stats.num_output_tokens)
        cost = RequestCost(
            route=about.route,
            tenant=about.tenant or NO_TENANT,
            rule=about.policy_rule or NO_RULE,
            proposer=_main_proposer(stats),
            num_output_tokens=stats.num_output_tokens,
            device=stats.device,
            num_computed_tokens=max(0, stats.num_prompt_tokens - stats.num_cached_tokens),
            amount=amount,
            experiment=_contest(about) if is_compared else None,
            arm="canary" if assignment and assignment.arm == "canary" else "control",
        )
        self.usage.observe(cost)
        is_control = assignment is not None and assignment.share > 0.0 and assignment.arm != "canary"
        self._modes.observe(self.usage.known("route", cost.route), stats.mode, is_control=is_control)
        self._comparisons.observe(cost)
        arm = assignment.arm if assignment else "none"
        self._metrics.request((about.route, cost.tenant, cost.proposer, arm), cost.num_output_tokens, cost.device)

    async def tick(self) -> None:
        """Follow the price file and take a snapshot of the totals."""
        self._metrics.memory(self._memory())
        self._rates.poll(self.usage.total)
        if self._clock() - self._shown_at >= COMPARED_FOR_S:
            self._shown_at = self._clock()
            self._metrics.compared(await asyncio.to_thread(self._savings))
        self.device_time.poll()
        await self._keep_periods()
        if self._prices is not None:
            await self._follow(self._prices)
            await self._keep(self._prices)

    async def close(self) -> None:
        """End the period and save it."""
        self.device_time.close()
        await self._keep_periods()

    async def report(self) -> CostReport:
        """Return everything that is known; no forecast in the first hour."""
        price, device, compared = self.price, self.device_time, await self.experiments()
        groups = {one.rollout: one.groups for one in compared}
        return CostReport(
            price=price,
            total=self.usage.total,
            device=device.total(),
            periods=[device.current(), *reversed(device.closed)],
            **{f"by_{dimension}": self.usage.of(dimension) for dimension in DIMENSIONS},
            routes=list(speedups(self._modes, groups, self._killed())),
            rollouts=list(compared),
            memory=[
                MemoryCost(**asdict(one), amount_per_hour=price.memory_per_hour(one.total) if price else None)
                for one in self._memory()
            ],
            forecast=self._rates.forecast(self.usage.total, price),
        )

    async def experiments(self) -> Sequence[ComparedExperiment]:
        """Return the newest stage of each rollout, at most `COMPARED_FOR_S` old."""
        if self._clock() - self._compared_at >= COMPARED_FOR_S:
            self._compared_at = self._clock()
            self._compared = await asyncio.to_thread(self._compare)
        return self._compared

    def pilot(self, since: float) -> PilotReport:
        """Return the pilot report from a Unix time until now; it takes seconds for many requests."""
        prices = {"device s": 1.0, **({used.currency: used.per_second} if (used := self.price) else {})}
        with self._database.read() as connection:
            return pilot_report(connection, since, self._now(), prices)

    def _savings(self) -> Mapping[str, Interval]:
        """Return what each rule's rollout saves in its newest stage, some milliseconds each."""
        newest = self._comparisons.newest.items()
        return {rollout_id.rpartition("@")[0]: next(one.compared()).saved for rollout_id, one in newest}

    def _compare(self) -> tuple[ComparedExperiment, ...]:
        return tuple(_experiment(one) for one in self._comparisons.newest.values())

    async def _follow(self, prices: PriceFile) -> None:
        before = prices.value
        reload = await asyncio.to_thread(prices.poll)
        if reload.refused is not None:
            self._metrics.refused.inc()
            log.error("prices_not_reloaded", error=str(reload.refused), in_use=before.full_version)
        elif reload.changed:
            self._show(prices, "reloaded", before.content())

    def _show(self, prices: PriceFile, what: str, before: object = None) -> None:
        book, price = prices.value, prices.price
        self._metrics.priced(book.currency, price.name, book.full_version, price.per_second)
        self.device_time.price(DevicePrice(f"{book.full_version}/{price.name}", book.currency, price.per_second))
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

    async def _keep_periods(self) -> None:
        """Save the periods that are over, and now and then the one that is not.

        An unavailable database is retried at the next tick.
        """
        closed = self.device_time.closed
        unsaved = closed[closed.index(self._saved) + 1 :] if self._saved in closed else closed
        is_due = self._clock() - self._kept_at >= KEPT_EVERY_S
        if not (unsaved or is_due):
            return
        with suppress(Exception):  # contained: the writer reports an unavailable database
            growing = [self.device_time.current()] if is_due else []
            await asyncio.to_thread(_put_periods, self._database, self._replica, [*unsaved, *growing])
            self._saved = unsaved[-1] if unsaved else self._saved
            self._kept_at = self._clock() if is_due else self._kept_at

    async def _keep(self, prices: PriceFile) -> None:
        """Save the book in the store once; an unavailable database is retried at the next tick."""
        book = prices.value
        if self._kept == book.full_version:
            return
        with suppress(Exception):  # contained: the writer reports an unavailable database
            content = json.dumps(book.content(), sort_keys=True)
            await asyncio.to_thread(_put, self._database, book.full_version, content)
            self._kept = book.full_version


def feature(context: Context, prices: PriceFile | None, killed: Callable[[], Collection[str]]) -> CostFeature:
    """Return the costs of a server's requests; `killed`: the scopes that the kill switch stops."""
    return CostFeature(
        context.registry,
        context.database,
        prices=prices,
        memory=context.client.proposer_memory,
        killed=killed,
        emit=context.emit,
        clock=context.monotonic,
        now=context.wall,
    )


def _put_periods(database: Database, replica: str, periods: Sequence[DeviceCost]) -> None:
    with database.write() as connection:
        store_periods(connection, replica, periods)


def _put(database: Database, version: str, content: str) -> None:
    with database.write() as connection:
        store_prices(connection, version, content)


def _contest(about: RequestAbout) -> Experiment | None:
    """Return the experiment; only if chance drew the request by itself, against plain."""
    one, share = about.assignment, about.canary_share
    return None if one is None or share is None else Experiment(one.rollout_id, one.run, one.stage, share)


def _main_proposer(stats: RequestStats) -> str:
    """Return the proposer with the most accepted tokens, or without any, with the most drafted ones."""
    by_tokens = {(counts.num_accepted, counts.num_draft_tokens): name for name, counts in stats.proposers.items()}
    return by_tokens[max(by_tokens)] if by_tokens else NO_PROPOSER


class _Metrics:
    """Device seconds and their divisors; ratios and money are left to queries."""

    def __init__(self, registry: CollectorRegistry) -> None:
        by = ("route", "tenant", "proposer", "arm")
        text = "Device time of requests that were answered"
        self._seconds = counter(registry, "request_device_seconds", text, *by, most=160)
        text = "The same, predicted for plain decoding"
        self._predicted = counter(registry, "request_predicted_plain_seconds", text, *by, most=160)
        text_of_tokens = "Output tokens of these requests"
        self._tokens = counter(registry, "request_output_tokens", text_of_tokens, *by, most=160)
        text = "Share of device time that a rule's rollout saves against its control, in its newest stage"
        self._saved = gauge(registry, "rollout_saved", text, "rule", "bound", most=192)
        text = "The price in use"
        self._price = gauge(registry, "price_per_device_second", text, "currency", "price", "version")
        self.refused = counter(registry, "price_book_refused", "Edits of the price book that were refused")
        text = "Memory of a proposer, without the target's"
        self._memory = gauge(registry, "proposer_memory_bytes", text, "proposer", "kind")

    def request(self, labels: tuple[str, str, str, str], num_output_tokens: int, device: DeviceSeconds) -> None:
        """Count a request under its route, tenant, proposer and arm."""
        self._seconds.labels(*labels).inc(device.total)
        self._predicted.labels(*labels).inc(device.predicted_plain)
        self._tokens.labels(*labels).inc(num_output_tokens)

    def compared(self, savings: Mapping[str, Interval]) -> None:
        """Show the savings of rollouts that are known with their bounds, and no others."""
        self._saved.clear()
        for rule, one in savings.items():
            if one.estimate is None or one.lower is None or one.upper is None:
                continue
            for bound, value in (("estimate", one.estimate), ("lower", one.lower), ("upper", one.upper)):
                self._saved.labels(rule, bound).set(value)

    def priced(self, currency: str, price: str, version: str, per_second: float) -> None:
        """Show the price in use, and no other."""
        self._price.clear()
        self._price.labels(currency, price, version).set(per_second)

    def memory(self, proposers: Iterable[ProposerMemory]) -> None:
        """Show the memory of proposers; a proposer that was removed keeps its last figure."""
        for one in proposers:
            for kind, size in (("weights", one.weights), ("kv", one.kv), ("index", one.index)):
                self._memory.labels(one.proposer, kind).set(size)


class PilotQuery(Body):
    since: AwareDatetime


def cost_routes(costs: CostFeature) -> Sequence[Route]:
    """Return the routes that show costs, and what speculation brings."""
    routes = Routes()

    @routes.get("/admin/pilot", roles=READERS, summary="Speculating against control requests since a time")
    async def pilot(query: Annotated[PilotQuery, read_query(PilotQuery)]) -> PilotReport:
        return await asyncio.to_thread(costs.pilot, query.since.timestamp())

    routes.get(COST.path, roles=READERS, summary=COST.help)(costs.report)
    return routes.all


def _experiment(comparison: Comparison) -> ComparedExperiment:
    experiment = comparison.experiment
    groups = tuple(comparison.compared())
    return ComparedExperiment(experiment.rollout_id, experiment.run, experiment.stage, experiment.share, groups)
