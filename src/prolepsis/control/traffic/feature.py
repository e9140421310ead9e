"""Traffic classes: acceptance, savings, modes and reasons for plain steps, at /admin/traffic."""

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from prolepsis.control.statistics.percentile import percentile
from prolepsis.control.traffic.service import ServiceLevel, ServiceReply
from prolepsis.control.traffic.timeline import Timeline, TimelineSpan
from prolepsis.control.web.feature import Feature
from prolepsis.control.web.routes import READERS, Route, Routes
from prolepsis.core.ended import RequestEnded
from prolepsis.core.engine_client import EngineHealth
from prolepsis.core.facts import rule_of_class
from prolepsis.core.reasons import EffectiveReason, PlainReason
from prolepsis.core.stats import Mode, ProposerCounts, RequestStats
from prolepsis.core.traffic_sums import TrafficSums, ratio, sums_of

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
    """As of a traffic class."""
    minutes: list[TimelineSpan]
    """The last hour."""


@dataclass(slots=True)
class ClientPrompts:
    """Prompts of one family of clients since the server started."""

    client: str
    num_requests: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    """Of them in the prefix cache."""

    def add(self, ended: RequestEnded) -> None:
        self.num_requests += 1
        self.num_prompt_tokens += sum(prompt.stats.num_prompt_tokens for prompt in ended.prompts)
        self.num_cached_tokens += sum(prompt.stats.num_cached_tokens for prompt in ended.prompts)


@dataclass(frozen=True, slots=True)
class TrafficReply:
    classes: list[TrafficClassReply]
    """The busiest first."""
    rules: list[RuleReply]
    """The busiest first; rules beyond the first 16 of a policy are `other`."""
    spans: list[TimelineSpan]
    """The last hour of all traffic, in spans of 15 seconds."""
    service: ServiceReply
    """What clients got in the last five minutes."""
    clients: list[ClientPrompts]
    """By name."""


@dataclass(slots=True)
class _ClassFigures:
    sums: TrafficSums = field(default_factory=TrafficSums)
    num_steps: int = 0
    modes: Counter[Mode] = field(default_factory=Counter)
    reasons: Counter[EffectiveReason] = field(default_factory=Counter)
    plain_steps: Counter[PlainReason] = field(default_factory=Counter)
    proposers: dict[str, ProposerCounts] = field(default_factory=dict)
    first_token_s: deque[float] = field(default_factory=lambda: deque(maxlen=_LATENCIES))

    def add(self, stats: RequestStats) -> None:
        self.sums.add(sums_of(stats))
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
        self._clients: dict[str, ClientPrompts] = {}
        self._minutes: dict[str, Timeline] = {}
        """By rule."""

    def _time(self) -> float:
        return self.now()

    async def tick(self) -> None:
        """Read the engine's load."""
        health, span = self._health(), self.all.current()
        span.num_running, span.num_waiting, span.kv_usage = health.num_running, health.num_waiting, health.kv_usage

    def on_request_end(self, ended: RequestEnded) -> None:
        """Count a request by its end, and the prompts that an engine decoded."""
        self.service.ended(ended, self.now())
        client = ended.about.client
        self._clients.setdefault(client, ClientPrompts(client)).add(ended)
        for prompt in ended.prompts:
            name = prompt.request.traffic_class
            if prompt.answer not in ("complete", "cut") or not name:
                continue
            if name in self._classes or len(self._classes) < MAX_CLASSES:
                self._classes.setdefault(name, _ClassFigures()).add(prompt.stats)
                minutes = self._minutes.setdefault(rule_of_class(name), Timeline(60.0, 60, self._time))
                minutes.current().add(sums_of(prompt.stats))
            self.all.current().add(sums_of(prompt.stats))

    @property
    def reply(self) -> TrafficReply:
        ordered = sorted(self._classes.items(), key=lambda item: -item[1].sums.num_output_tokens)
        by_rule: dict[str, list[_ClassFigures]] = {}
        for name, one in ordered:
            by_rule.setdefault(rule_of_class(name), []).append(one)
        rules = sorted(
            (_of_rule(rule, classes, self._minutes[rule].spans) for rule, classes in by_rule.items()),
            key=lambda r: -r.num_output_tokens,
        )
        classes = [_shown(name, one) for name, one in ordered]
        clients = [self._clients[name] for name in sorted(self._clients)]
        return TrafficReply(classes, rules, list(self.all.spans), self.service.reply(self.now()), clients)


def _of_rule(rule: str, classes: Sequence[_ClassFigures], minutes: Sequence[TimelineSpan]) -> RuleReply:
    sums = TrafficSums()
    for one in classes:
        sums.add(one.sums)
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
        minutes=list(minutes),
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
    )


def _routes(feature: TrafficFeature) -> Sequence[Route]:
    routes = Routes()

    @routes.get("/admin/traffic", roles=READERS, summary="Acceptance, savings and modes by traffic class")
    async def traffic() -> TrafficReply:
        return feature.reply

    return routes.all
