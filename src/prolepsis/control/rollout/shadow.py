"""The gain from speculation, estimated from requests in shadow mode: ratios with intervals, the request as the unit."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from prolepsis.core.facts import rule_of_class
from prolepsis.core.stats import ProposerCounts, RequestStats
from prolepsis.core.traffic_sums import Interval, RatioSums


@dataclass(slots=True)
class ProposerEvidence:
    counts: ProposerCounts = field(default_factory=ProposerCounts)
    accepted: RatioSums = field(default_factory=RatioSums)
    """Accepted share of its drafted tokens, over requests in which it drafted."""
    saved: RatioSums = field(default_factory=RatioSums)
    """Saved share of a request's time: (accepted - drafting - verifying) / emitted, all in tokens."""


@dataclass(slots=True)
class TrafficClassEvidence:
    """One traffic class: all of its shadow requests that were not put off, with or without a draft."""

    num_tokens: int = 0
    proposers: dict[str, ProposerEvidence] = field(default_factory=dict)
    saved: RatioSums = field(default_factory=RatioSums)  # saved by all proposers together
    drafting: RatioSums = field(default_factory=RatioSums)
    """Share of a request's time that drafting in shadow took."""

    @property
    def speedup(self) -> Interval | None:
        """Tokens per second with speculation over without: each accepted token saves the time of a plain one."""
        saved = self.saved.interval
        return saved and saved.mapped(lambda share: 1.0 / max(1e-3, 1.0 - share))

    def add(self, stats: RequestStats) -> None:
        """Process a request that has ended."""
        num_tokens, shadow = stats.num_output_tokens, stats.shadow
        self.num_tokens += num_tokens
        self.saved.add(sum(map(_saved, shadow.values())), num_tokens)
        self.drafting.add(sum(counts.drafting for counts in shadow.values()), num_tokens)
        for name in self.proposers.keys() | shadow.keys():
            self._add_proposer(name, shadow, num_tokens)

    def _add_proposer(self, name: str, shadow: Mapping[str, ProposerCounts], num_tokens: int) -> None:
        """Requests without a draft of it save nothing, and so do the requests before its first draft."""
        known = self.proposers.get(name)
        if known is None:
            number, n = self.saved.number - 1, self.saved.n - num_tokens
            before = RatioSums(number, n=n, nn=self.saved.nn - float(num_tokens) * num_tokens)
            known = self.proposers[name] = ProposerEvidence(saved=before)
        counts = shadow.get(name, ProposerCounts())
        known.saved.add(_saved(counts), num_tokens)
        if counts.num_draft_tokens:
            known.accepted.add(counts.num_accepted, counts.num_draft_tokens)
        total = known.counts
        total.num_drafts += counts.num_drafts
        total.num_draft_tokens += counts.num_draft_tokens
        total.num_accepted += counts.num_accepted


def _saved(counts: ProposerCounts) -> float:
    return counts.num_accepted - counts.drafting - counts.verifying


class ShadowEvidence:
    """By traffic class, since draft heads or policy last changed."""

    def __init__(self) -> None:
        self.version = ""
        self.traffic_classes: dict[str, TrafficClassEvidence] = {}
        self.rules: dict[str, TrafficClassEvidence] = {}
        """By rule of the policy, all of its classes together."""

    def add(self, traffic_class: str, stats: RequestStats, version: str) -> None:
        """Process a request in shadow that has ended; another version of draft heads or policy starts afresh."""
        if version != self.version:
            self.version, self.traffic_classes, self.rules = version, {}, {}
        if stats.num_output_tokens:
            self.traffic_classes.setdefault(traffic_class, TrafficClassEvidence()).add(stats)
            self.rules.setdefault(rule_of_class(traffic_class), TrafficClassEvidence()).add(stats)
