"""Traffic classes: acceptance, savings, modes and reasons for plain steps, at /admin/traffic and on console pages."""

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from prolepsis.audit.changes import ChangesReply
from prolepsis.console.admin import Section
from prolepsis.console.changes import marks, recent_changes
from prolepsis.console.drawing import Chart, Line, path_of
from prolepsis.console.pages import Page, Pages, Visit
from prolepsis.console.service import ServiceLevel, ServiceReply
from prolepsis.console.timeline import Span, Timeline
from prolepsis.core.ended import RequestEnded
from prolepsis.core.facts import rule_of_class
from prolepsis.core.stats import EffectiveReason, Mode, PlainReason, ProposerCounts, RequestStats
from prolepsis.core.traffic_sums import TrafficSums, ratio, sums_of
from prolepsis.engine.client import EngineHealth
from prolepsis.policy.eligibility_runtime import EligibilityReply
from prolepsis.rollout.shadow_runtime import ShadowReply
from prolepsis.safety.breaker_runtime import BreakersReply
from prolepsis.statistics.percentile import percentile
from prolepsis.web.errors import RequestRefused
from prolepsis.web.feature import Feature
from prolepsis.web.routes import READERS, Route, Routes

MAX_CLASSES = 256
"""Traffic classes with figures of their own; there are fewer by construction, so later ones are left out."""
_LATENCIES = 256


@dataclass(frozen=True, slots=True)
class ProposerShare:
    """Drafts of one proposer in a traffic class."""

    num_draft_tokens: int
    num_accepted: int
    per_position: list[list[int]]
    """Drafted and accepted tokens, by draft position."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficClassReply:
    """One traffic class since the server started; null: not known yet."""

    traffic_class: str
    num_requests: int
    num_output_tokens: int
    num_steps: int
    num_draft_tokens: int
    num_accepted: int
    acceptance_rate: float | None
    tokens_per_step: float | None
    device_s: float
    predicted_plain_s: float
    saved: float | None
    """1 - device time / predicted device time of plain decoding."""
    saved_bounds: tuple[float, float] | None
    """Of 95 %, at one look; null with fewer than 20 requests."""
    modes: dict[Mode, int]
    """Requests by what speculation really did."""
    reasons: dict[EffectiveReason, int]
    plain_steps: dict[PlainReason, int]
    """Steps that might have speculated and did not."""
    proposers: dict[str, ProposerShare]
    first_token_s: list[float | None]
    """Median and 95th percentile, over the last requests."""
    minutes: list[Span]
    """The last hour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleReply:
    """All classes of one rule of the policy since the server started; `default`: no rule matched."""

    rule: str
    num_requests: int
    num_output_tokens: int
    acceptance_rate: float | None
    tokens_per_step: float | None
    device_s: float
    predicted_plain_s: float
    saved: float | None
    saved_bounds: tuple[float, float] | None
    """As those of a traffic class."""
    minutes: list[Span]
    """The last hour."""


@dataclass(frozen=True, slots=True)
class TrafficReply:
    classes: list[TrafficClassReply]
    """The busiest first."""
    rules: list[RuleReply]
    """The busiest first; rules beyond the first 16 of a policy are `other`."""
    spans: list[Span]
    """The last hour of all traffic, in spans of 15 seconds."""
    service: ServiceReply
    """What clients got in the last five minutes."""


@dataclass(slots=True)
class _ClassFigures:
    minutes: Timeline
    sums: TrafficSums = field(default_factory=TrafficSums)
    num_steps: int = 0
    modes: Counter[Mode] = field(default_factory=Counter)
    reasons: Counter[EffectiveReason] = field(default_factory=Counter)
    plain_steps: Counter[PlainReason] = field(default_factory=Counter)
    proposers: dict[str, ProposerCounts] = field(default_factory=dict)
    first_token_s: deque[float] = field(default_factory=lambda: deque(maxlen=_LATENCIES))

    def add(self, stats: RequestStats) -> None:
        ended = sums_of(stats)
        for sums in (self.sums, self.minutes.current()):
            sums.add(ended)
        self.num_steps += stats.num_steps
        self.modes[stats.mode.mode] += 1
        self.reasons[stats.mode.reason] += 1
        self.plain_steps.update(stats.plain_steps)
        for name, counts in stats.proposers.items():
            self.proposers.setdefault(name, ProposerCounts()).add(counts)
        if stats.first_token_s is not None:
            self.first_token_s.append(stats.first_token_s)


class TrafficFeature(Feature):
    """Belongs to one event loop."""

    name = "traffic"
    period_s = 5.0

    def __init__(self, health: Callable[[], EngineHealth], now: Callable[[], float] = time.time) -> None:
        """`now` is Unix time."""
        self.routes = _routes(self)
        self.now = now
        self.all = Timeline(15.0, 240, self._time)
        self.service = ServiceLevel()
        self._health = health
        self._classes: dict[str, _ClassFigures] = {}

    def _time(self) -> float:
        return self.now()

    async def tick(self) -> None:
        """Read the engine's load."""
        health, span = self._health(), self.all.current()
        span.num_running, span.num_waiting, span.kv_usage = health.num_running, health.num_waiting, health.kv_usage

    def on_request_end(self, ended: RequestEnded) -> None:
        """Count a request by its end, and the prompts that an engine decoded."""
        self.service.ended(ended, self.now())
        for prompt in ended.prompts:
            name = prompt.request.traffic_class
            if prompt.answer not in ("complete", "cut") or not name:
                continue
            if name in self._classes or len(self._classes) < MAX_CLASSES:
                figures = self._classes.setdefault(name, _ClassFigures(Timeline(60.0, 60, self._time)))
                figures.add(prompt.stats)
            self.all.current().add(sums_of(prompt.stats))

    @property
    def reply(self) -> TrafficReply:
        ordered = sorted(self._classes.items(), key=lambda item: -item[1].sums.num_output_tokens)
        by_rule: dict[str, list[_ClassFigures]] = {}
        for name, one in ordered:
            by_rule.setdefault(rule_of_class(name), []).append(one)
        rules = sorted(
            (_of_rule(rule, classes) for rule, classes in by_rule.items()), key=lambda r: -r.num_output_tokens
        )
        classes = [_shown(name, one) for name, one in ordered]
        return TrafficReply(classes, rules, list(self.all.spans), self.service.reply(self.now()))


def _of_rule(rule: str, classes: Sequence[_ClassFigures]) -> RuleReply:
    sums, minutes = TrafficSums(), dict[float, Span]()
    for one in classes:
        sums.add(one.sums)
        for span in one.minutes.spans:
            minutes.setdefault(span.at, Span(at=span.at)).add(span)
    return RuleReply(
        rule=rule,
        num_requests=sums.num_requests,
        num_output_tokens=sums.num_output_tokens,
        acceptance_rate=sums.acceptance_rate,
        tokens_per_step=ratio(sums.num_output_tokens, sum(one.num_steps for one in classes)),
        device_s=sums.device_s,
        predicted_plain_s=sums.predicted_plain_s,
        saved=sums.saved,
        saved_bounds=sums.saved_bounds,
        minutes=[minutes[at] for at in sorted(minutes)],
    )


def _shown(name: str, one: _ClassFigures) -> TrafficClassReply:
    sums = one.sums
    return TrafficClassReply(
        traffic_class=name,
        num_requests=sums.num_requests,
        num_output_tokens=sums.num_output_tokens,
        num_steps=one.num_steps,
        num_draft_tokens=sums.num_draft_tokens,
        num_accepted=sums.num_accepted,
        acceptance_rate=sums.acceptance_rate,
        tokens_per_step=ratio(sums.num_output_tokens, one.num_steps),
        device_s=sums.device_s,
        predicted_plain_s=sums.predicted_plain_s,
        saved=sums.saved,
        saved_bounds=sums.saved_bounds,
        modes=dict(one.modes),
        reasons=dict(one.reasons),
        plain_steps=dict(one.plain_steps),
        proposers={
            proposer: ProposerShare(counts.num_draft_tokens, counts.num_accepted, counts.per_position)
            for proposer, counts in sorted(one.proposers.items())
        },
        first_token_s=[percentile(one.first_token_s, level) for level in (0.5, 0.95)],
        minutes=list(one.minutes.spans),
    )


def _routes(feature: TrafficFeature) -> Sequence[Route]:
    routes = Routes()

    @routes.get("/admin/traffic", roles=READERS, summary="Acceptance, savings and modes by traffic class")
    async def traffic() -> TrafficReply:
        return feature.reply

    return routes.all


WHY: Mapping[str, str] = {
    "no_draft": "no proposer had a draft",
    "not_worth_it": "verifying the draft would not have paid",
    "too_costly": "asking proposers would not have paid",
    "backoff": "the proposers back off after failures",
    "breaker_open": "breakers disable the proposers of this class",
    "killed": "the kill switch stops it",
    "shadow_budget": "the time budget for shadow drafts is used up",
    "decision_failed": "deciding about drafts failed: see the server's log",
    "no_capacity": "there was no room for a draft token",
    "requested_off": "the caller turned it off",
    "policy_off": "the policy's rule says off, or did not draw the request",
    "not_eligible": "drafts of its class do not show what the rule requires",
    "flag_off": "a feature flag turned it off",
    "plan_off": "the plan's ceiling is 0",
    "rolled_back": "its rollout was rolled back",
    "no_decode": "it ended before a step that could have drafted",
    "overload_shallow": "drafts were shorter, as requests waited in the queue",
    "overload_plain": "requests waited too long in the queue",
    "overload_batch_waits": "requests waited too long in the queue; batch work waits",
    "overload_low_refused": "requests waited too long in the queue; low tiers are refused",
    "response_cache": "the answer came from the response cache",
    "replay": "it is a replay",
    "speculating": "drafts were verified",
    "compared": "drafts were compared with the plain answer",
    "not_reported": "the upstream engine does not say what its drafts brought",
    "plain_only": "upstream engines cannot draft as the request asks",
    "pool_down": "its upstream pool was down, and the other one served it",
}
"""Reasons in words, for requests and for steps."""


def declare_traffic(pages: Pages) -> None:
    async def classes(visit: Visit) -> Page:
        traffic = await visit.read(TrafficReply, "/admin/traffic")
        sparks = {one.traffic_class: path_of(acceptance(one.minutes), 0.0, 1.0) for one in traffic.classes}
        shadow = await visit.section(ShadowReply, "/admin/shadow")
        values = {
            "classes": traffic.classes,
            "rules": traffic.rules,
            "shadow": {one.rule: one.expected_speedup for one in shadow.value.rules} if shadow.value else {},
            "sparks": sparks,
        }
        return Page("traffic.html", "Traffic classes", values)

    async def one_class(visit: Visit) -> Page:
        name = visit.names["name"]
        traffic = await visit.read(TrafficReply, "/admin/traffic")
        found = next((one for one in traffic.classes if one.traffic_class == name), None)
        if found is None:
            message = f"There is no traffic of the class {name[:128]!r} since the server started."
            raise RequestRefused(message, code="unknown_traffic_class", status=404)
        eligibility = await visit.section(EligibilityReply, "/admin/eligibility")
        breakers = await visit.section(BreakersReply, "/admin/breakers")
        changes = await recent_changes(visit)
        values = {
            "one": found,
            "charts": charts(found.minutes[:-1], changes),
            "changes": changes,
            "why": WHY,
            "figures": [f for f in eligibility.value.figures if f.traffic_class == name] if eligibility.value else [],
            "conditions": [c for c in eligibility.value.conditions if c.traffic_class == name]
            if eligibility.value
            else [],
            "breakers": [b for b in breakers.value.breakers if b.traffic_class == name] if breakers.value else [],
            "positions": positions(found),
        }
        return Page("traffic_class.html", name, values)

    pages.get("/console/traffic", "Traffic classes", classes)
    pages.get("/console/traffic/{name:path}", "One traffic class", one_class)


def acceptance(minutes: Sequence[Span]) -> list[float | None]:
    return [span.acceptance_rate for span in minutes]


def charts(minutes: Sequence[Span], changes: Section[ChangesReply]) -> list[Chart]:
    at = [span.at for span in minutes]

    def percent(values: Sequence[float | None]) -> list[float | None]:
        return [None if value is None else 100.0 * value for value in values]

    return [
        Chart(
            title="Acceptance",
            unit="% of drafted tokens",
            at=at,
            lines=[Line("accepted", percent(acceptance(minutes)))],
            top=100.0,
            marks=marks(changes, at),
        ),
        Chart(
            title="Device time saved",
            unit="% against predicted plain decoding",
            at=at,
            lines=[Line("saved", percent([span.saved for span in minutes]))],
            top=50.0,
        ),
    ]


def positions(one: TrafficClassReply) -> list[tuple[int, dict[str, float | None]]]:
    """Return by draft position the share that was accepted, by proposer."""
    longest = max((len(proposer.per_position) for proposer in one.proposers.values()), default=0)
    return [
        (
            place + 1,
            {
                name: proposer.per_position[place][1] / proposer.per_position[place][0]
                if place < len(proposer.per_position) and proposer.per_position[place][0]
                else None
                for name, proposer in one.proposers.items()
            },
        )
        for place in range(longest)
    ]
