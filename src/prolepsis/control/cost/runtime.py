"""Costs while serving: requests are counted and compared, the price book is followed, and /admin/cost shows them."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

from prometheus_client import CollectorRegistry

from prolepsis.control.cost.commands import COST
from prolepsis.control.cost.comparison import ArmComparison, ComparedExperiment, Comparisons
from prolepsis.control.cost.device_time import DeviceCost, DeviceTime
from prolepsis.control.cost.history import PeriodKeeper
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
from prolepsis.control.cost.pilot import PilotReport, pilot_reports
from prolepsis.control.cost.price_watch import PriceWatch
from prolepsis.control.cost.prices import PriceFile, PriceInUse
from prolepsis.control.store.database import Database
from prolepsis.control.web.context import Context
from prolepsis.control.web.feature import Feature
from prolepsis.control.web.routes import READERS, shown
from prolepsis.core.audit_event import Emit, discard
from prolepsis.core.ended import FAILED, RequestAbout, RequestEnded
from prolepsis.core.facts import NO_RULE
from prolepsis.core.json_value import computed
from prolepsis.core.stats import ProposerMemory, RequestStats
from prolepsis.core.telemetry.declare import counter, gauge
from prolepsis.core.telemetry.labels import NO_TENANT

NO_KEY = "none"  # the key of callers without one
COMPARED_FOR_S = 30.0
"""A comparison serves at most this long: bounds of all its groups take some tenths of a second."""
_OVERALL_SHARE = 0.02  # of the time may go into the bounds over all requests, which are wanted fresh


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCost(ProposerMemory):
    """Bytes besides the target's; the amount is the memory's share of an hour's price."""

    amount_per_hour: float | None

    @computed
    def total(self) -> int:
        return self.weights + self.kv + self.index


@dataclass(frozen=True, slots=True, kw_only=True)
class CostReport:
    """What the requests since the server's start cost and saved."""

    price: PriceInUse | None  # null: no price book; device seconds only
    total: UsageTotals
    device: DeviceCost  # since the server started
    periods: list[DeviceCost]
    """An hour each, or less where the price changed, the newest first; `prolepsis store prices` has earlier ones."""
    by_route: list[UsageTotals]
    by_tenant: list[UsageTotals]
    by_rule: list[UsageTotals]
    by_proposer: list[UsageTotals]
    by_key: list[UsageTotals]
    by_tag: list[UsageTotals]
    """By the tags that the price book lists; a request with several is in the sums of each."""
    rollouts: list[ComparedExperiment]
    memory: list[MemoryCost]
    forecast: CostForecast | None  # forecast of a month; null in the first hour


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
        emit: Emit = discard,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`clock` is monotonic, `now` Unix time; `memory` returns the memory of the proposers.

        `database` keeps the price books that were used, and what the device cost.
        """
        self.usage = Usage()
        self.device_time = DeviceTime(clock, now)
        self.routes = shown(COST.path, READERS, COST.help, self.report)
        self._prices = PriceWatch(registry, prices, database, emit=emit, use=self.device_time.price)
        self._periods = PeriodKeeper(database, self.device_time, clock)
        self._rates = RateWindow(clock)
        self._comparisons = Comparisons()
        self._compared: tuple[ComparedExperiment, ...] = ()
        self._overall: Mapping[str, ArmComparison] = {}
        self._compared_at = self._saved_at = self._overall_until = float("-inf")
        self._memory = memory
        self._database = database
        self._clock = clock
        self._now = now
        by = ("route", "tenant", "proposer", "arm")
        self._sums = [
            counter(registry, f"request_{name}", text, *by, most=160)
            for name, text in (
                ("device_seconds", "Device time of requests that were answered"),
                ("predicted_plain_seconds", "The same, predicted for plain decoding"),
                ("output_tokens", "Output tokens of these requests"),
            )
        ]
        text = "Device time of requests by the tags that the price book lists; of several tags each has all of it"
        self._tag_seconds = counter(registry, "tag_device_seconds", text, "tag")
        text = "What clients are charged in the price book's currency, by the tag that has the price"
        self._revenue = counter(registry, "revenue", text, "tag")
        text = "Share of device time that a rollout saves in its newest stage: estimate, lower and upper bound (95 %)"
        self._saved = gauge(registry, "rollout_saved", text, "rule", "bound", most=192)
        text = "Memory of a proposer, without the target's"
        self._memory_bytes = gauge(registry, "proposer_memory_bytes", text, "proposer", "kind")

    @property
    def price(self) -> PriceInUse | None:
        return self._prices.price

    @property
    def billed_per_second(self) -> float | None:
        """The price of a device second, None where none is billed: without prices, or if it is reserved."""
        return self.price.per_second if self.price is not None and self.price.is_billed_by_time else None

    def on_request_end(self, ended: RequestEnded) -> None:
        """Count a request that has ended.

        A request that did not finish is counted but not compared; the same holds for prompts that share an assignment.
        """
        about = ended.about
        for prompt in ended.prompts:
            if prompt.answer in ("complete", "cut") and prompt.stats.device.total:
                is_compared = prompt.end == "finished" and prompt.stats.num_output_tokens > 0
                self._observe(about, prompt.stats, is_compared=is_compared, is_charged=prompt.end not in FAILED)

    def _observe(self, about: RequestAbout, stats: RequestStats, *, is_compared: bool, is_charged: bool) -> None:
        assignment, book = about.assignment if about.is_evidence else None, self._prices.book
        tags, charges = (book.listed(about.tags), book.revenue) if book is not None else ((), {})
        paying, revenue = next((tag for tag in tags if tag in charges and is_charged), None), None
        if paying is not None:
            revenue = charges[paying].of(stats.num_prompt_tokens, stats.num_output_tokens)
            self._revenue.labels(paying).inc(revenue)
        amount = self.device_time.charge(stats.device.total, stats.compute_s or 0.0, stats.num_output_tokens)
        by_tokens = {(counts.num_accepted, counts.num_draft_tokens): name for name, counts in stats.proposers.items()}
        cost = RequestCost(
            route=about.route,
            tenant=about.tenant or NO_TENANT,
            rule=about.policy_rule or NO_RULE,
            proposer=by_tokens[max(by_tokens)] if by_tokens else NO_PROPOSER,
            num_output_tokens=stats.num_output_tokens,
            device=stats.device,
            num_computed_tokens=max(0, stats.num_prompt_tokens - stats.num_cached_tokens),
            amount=amount,
            experiment=_contest(about) if is_compared else None,
            arm="canary" if assignment and assignment.arm == "canary" else "control",
            key=about.key_id or NO_KEY,
            tags=tags,
            revenue=revenue,
        )
        for tag in tags:
            self._tag_seconds.labels(tag).inc(stats.device.total)
        self.usage.observe(cost)
        self._comparisons.observe(cost)
        labels = about.route, cost.tenant, cost.proposer, assignment.arm if assignment else "none"
        device_s, plain_s = stats.device.total, stats.device.predicted_plain
        for sums, amount in zip(self._sums, (device_s, plain_s, cost.num_output_tokens), strict=True):
            sums.labels(*labels).inc(amount)

    async def tick(self) -> None:
        """Follow the price file, take a snapshot of the totals, and save what is due."""
        for proposer in self._memory():  # one that was removed keeps its last figure
            for kind, size in (("weights", proposer.weights), ("kv", proposer.kv), ("index", proposer.index)):
                self._memory_bytes.labels(proposer.proposer, kind).set(size)
        self._rates.poll(self.usage.total)
        self.device_time.poll()
        await self._show_savings()
        await self._periods.keep()
        await self._prices.poll()

    async def _show_savings(self) -> None:
        """Show the savings of rollouts that are known with their bounds, and no others."""
        if self._clock() - self._saved_at < COMPARED_FOR_S:
            return
        self._saved_at = self._clock()
        overall = await self.overall()
        self._saved.clear()
        for rollout_id, compared in overall.items():
            bounds = asdict(compared.saved)
            if None not in bounds.values():
                for bound, value in bounds.items():
                    self._saved.labels(rollout_id.rpartition("@")[0], bound).set(value)

    async def close(self) -> None:
        self.device_time.close()
        await self._periods.keep()

    async def report(self) -> CostReport:
        """Return everything that is known; no forecast in the first hour."""
        price, device, compared = self.price, self.device_time, await self.experiments()
        return CostReport(
            price=price,
            total=self.usage.total,
            device=device.total(),
            periods=[device.current(), *reversed(device.closed)],
            **{f"by_{dimension}": self.usage.of(dimension) for dimension in DIMENSIONS},
            rollouts=list(compared),
            memory=[
                MemoryCost(**asdict(memory), amount_per_hour=price.memory_per_hour(memory.total) if price else None)
                for memory in self._memory()
            ],
            forecast=self._rates.forecast(self.usage.total, price),
        )

    async def experiments(self) -> Sequence[ComparedExperiment]:
        """Return the newest stage of each rollout, at most `COMPARED_FOR_S` old."""
        if self._clock() - self._compared_at >= COMPARED_FOR_S:
            self._compared_at = self._clock()
            self._compared = await asyncio.to_thread(self._comparisons.compared)
        return self._compared

    async def overall(self) -> Mapping[str, ArmComparison]:
        """Return all requests of the newest stage of each rollout, the fresher the faster that is found."""
        if (began := self._clock()) >= self._overall_until:
            self._overall = await asyncio.to_thread(self._comparisons.overall)
            took_s = self._clock() - began
            self._overall_until = began + min(COMPARED_FOR_S, took_s / _OVERALL_SHARE)
        return self._overall

    def pilot(self, since: float) -> list[PilotReport]:
        """Return the pilot reports from a Unix time until now; they take seconds for many requests."""
        prices = {"device s": 1.0, **({used.currency: used.per_second} if (used := self.price) else {})}
        with self._database.read() as connection:
            return pilot_reports(connection, since, self._now(), prices)


def feature(context: Context, prices: PriceFile | None) -> CostFeature:
    """Return the costs of a server's requests."""
    return CostFeature(
        context.registry,
        context.database,
        prices=prices,
        memory=context.client.proposer_memory,
        emit=context.emit,
        clock=context.monotonic,
        now=context.wall,
    )


def _contest(about: RequestAbout) -> Experiment | None:
    """Return the experiment; only if chance drew the request by itself, against plain."""
    drawn, share = about.assignment, about.canary_share
    return None if drawn is None or share is None else Experiment(drawn.rollout_id, drawn.run, drawn.stage, share)
