"""Traffic classes: acceptance, savings, modes and reasons for plain steps, at /admin/traffic."""

import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated

from pydantic import Field

from prolepsis.control.health.eligibility import saved_s
from prolepsis.control.statistics.percentile import percentile
from prolepsis.control.traffic.service import ServiceLevel, ServiceReply
from prolepsis.control.traffic.timeline import Timeline, TimelineSpan
from prolepsis.control.web.feature import Feature
from prolepsis.control.web.routes import READERS, shown
from prolepsis.core.bands import Band, bands_of
from prolepsis.core.ended import RequestEnded
from prolepsis.core.engine_client import EngineHealth
from prolepsis.core.facts import parts_of_class, rule_of_class
from prolepsis.core.json_value import computed
from prolepsis.core.reasons import EffectiveReason, PlainReason
from prolepsis.core.stats import Mode, ProposerCounts, RequestStats
from prolepsis.core.traffic_sums import Interval, RatioSums, TrafficSums, ratio, sums_of

MAX_CLASSES = 256
"""Traffic classes with figures of their own; there are fewer by construction, so later ones are left out."""
_Latest = Annotated[deque[float], Field(exclude=True)]
_latest = partial(deque[float], (), 256)  # values of the last requests


@dataclass(slots=True)
class TrafficClass(TrafficSums):
    """One traffic class since the server started; null: not known yet."""

    traffic_class: str = field(kw_only=True)
    modes: Counter[Mode] = field(default_factory=Counter)  # requests by what speculation really did
    reasons: Counter[EffectiveReason] = field(default_factory=Counter)
    plain_steps: Counter[PlainReason] = field(default_factory=Counter)
    """Steps that might have speculated and did not."""
    proposers: dict[str, ProposerCounts] = field(default_factory=dict)
    latest_first_token_s: _Latest = field(default_factory=_latest)
    latest_acceptance: _Latest = field(default_factory=_latest)

    @computed
    def acceptance_levels(self) -> list[float | None]:
        """Acceptance rate of requests: 10th percentile, median and 90th, over the last ones with drafts."""
        return [percentile(self.latest_acceptance, level) for level in (0.1, 0.5, 0.9)]

    @computed
    def first_token_s(self) -> list[float | None]:
        """Median and 95th percentile, over the last requests."""
        return [percentile(self.latest_first_token_s, level) for level in (0.5, 0.95)]

    def count(self, stats: RequestStats, sums: TrafficSums) -> None:
        self.add(sums)
        self.modes[stats.mode.mode] += 1
        self.reasons[stats.mode.reason] += 1
        self.plain_steps.update(stats.plain_steps)
        for name, counts in stats.proposers.items():
            self.proposers.setdefault(name, ProposerCounts()).add(counts)
        if (rate := stats.acceptance_rate) is not None:
            self.latest_acceptance.append(rate)
        if stats.first_token_s is not None:
            self.latest_first_token_s.append(stats.first_token_s)


@dataclass(slots=True)
class RuleTraffic(TrafficSums):
    """All classes of one rule of the policy since the server started; `default`: no rule matched."""

    rule: str = field(kw_only=True)
    minutes: list[TimelineSpan] = field(default_factory=list)  # the last hour


@dataclass(slots=True)
class PartTraffic(TrafficSums):
    """All classes of one domain or language since the server started, as far as the policy lists some."""

    part: str = field(kw_only=True)  # domain or language
    value: str = field(kw_only=True)  # one that is listed; other: another one; unknown: none was stated or detected
    gains: Annotated[RatioSums, Field(exclude=True)] = field(default_factory=RatioSums)

    @computed
    def gain(self) -> Interval | None:
        """Share of plain decoding's device time that drafts saved, or would have in shadow; null: there was none."""
        return self.gains.interval

    def count(self, stats: RequestStats, sums: TrafficSums) -> None:
        self.add(sums)
        if stats.num_drafts or stats.shadow:
            device = stats.device
            self.gains.add(saved_s(stats), device.predicted_plain if stats.num_drafts else device.total)


@dataclass(slots=True)
class BandTraffic(TrafficSums):
    """Answers of one band in the last hour: each is in one by caches, and if an engine wrote it in one by length."""

    band: Band = field(kw_only=True)
    burst: float | None = None  # requests of the busiest minute against those of the mean one


@dataclass(slots=True)
class ClientPrompts:
    """Prompts of one family of clients since the server started."""

    client: str
    num_requests: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0  # of them in the prefix cache


@dataclass(frozen=True, slots=True)
class TrafficReply:
    classes: list[TrafficClass]  # the busiest first
    rules: list[RuleTraffic]  # the busiest first; rules beyond the first 16 of a policy are `other`
    parts: list[PartTraffic]  # by domain and by language, each with the busiest first
    bands: list[BandTraffic]  # by name
    spans: list[TimelineSpan]  # the last hour of all traffic, in spans of 15 seconds
    service: ServiceReply  # what clients got in the last five minutes
    clients: list[ClientPrompts]  # by name


class TrafficFeature(Feature):
    """Belongs to one event loop."""

    name = "traffic"
    period_s = 5.0

    def __init__(self, health: Callable[[], EngineHealth], now: Callable[[], float] = time.time) -> None:
        """`now` is Unix time."""
        self.now = now
        self.all = Timeline(15.0, 240, self._time)
        self.service = ServiceLevel()
        self._health = health
        self._classes: dict[str, TrafficClass] = {}
        self._clients: dict[str, ClientPrompts] = {}
        self._parts: dict[tuple[str, str], PartTraffic] = {}
        self._minutes: dict[str, Timeline] = {}
        """By rule."""
        self._bands: dict[Band, Timeline] = {}
        self.routes = shown("/admin/traffic", READERS, "Acceptance, savings and modes by traffic class", self.reply)

    def _time(self) -> float:
        return self.now()  # which may be replaced

    async def tick(self) -> None:
        health, span = self._health(), self.all.current()
        span.num_running, span.num_waiting, span.kv_usage = health.num_running, health.num_waiting, health.kv_usage

    def on_request_end(self, ended: RequestEnded) -> None:
        """Count a request by its end, and the prompts that an engine decoded."""
        self.service.ended(ended, self.now())
        client = self._clients.setdefault(ended.about.client, ClientPrompts(ended.about.client))
        client.num_requests += 1
        for prompt in ended.prompts:
            client.num_prompt_tokens += prompt.stats.num_prompt_tokens
            client.num_cached_tokens += prompt.stats.num_cached_tokens
            sums = sums_of(prompt.stats)
            for band in bands_of(ended.about, prompt):
                self._bands.setdefault(band, Timeline(60.0, 60, self._time)).current().add(sums)
            name = prompt.request.traffic_class
            if prompt.answer not in ("complete", "cut") or not name:
                continue
            self.all.current().add(sums)
            for part, value in parts_of_class(name).items():
                if (part, value) in self._parts or len(self._parts) < MAX_CLASSES:
                    key = part, value
                    self._parts.setdefault(key, PartTraffic(part=part, value=value)).count(prompt.stats, sums)
            if name in self._classes or len(self._classes) < MAX_CLASSES:
                self._classes.setdefault(name, TrafficClass(traffic_class=name)).count(prompt.stats, sums)
                minutes = self._minutes.setdefault(rule_of_class(name), Timeline(60.0, 60, self._time))
                minutes.current().add(sums)

    def reply(self) -> TrafficReply:
        rules = {rule: RuleTraffic(rule=rule, minutes=list(of.spans)) for rule, of in self._minutes.items()}
        for name, traffic in self._classes.items():
            rules[rule_of_class(name)].add(traffic)
        return TrafficReply(
            classes=sorted(self._classes.values(), key=_busiest_first),
            rules=sorted(rules.values(), key=_busiest_first),
            parts=sorted(self._parts.values(), key=lambda traffic: (traffic.part, _busiest_first(traffic))),
            bands=[_band(name, self._bands[name]) for name in sorted(self._bands)],
            spans=list(self.all.spans),
            service=self.service.reply(self.now()),
            clients=[self._clients[name] for name in sorted(self._clients)],
        )


def _band(name: Band, minutes: Timeline) -> BandTraffic:
    numbers = [span.num_requests for span in minutes.spans]
    traffic = BandTraffic(band=name, burst=ratio(max(numbers) * len(numbers), sum(numbers)))
    for span in minutes.spans:
        traffic.add(span)
    return traffic


def _busiest_first(sums: TrafficSums) -> int:
    return -sums.num_output_tokens
