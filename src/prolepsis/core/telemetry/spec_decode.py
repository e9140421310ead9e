"""Metrics of speculation, from the counts of requests that have ended; raw counts only, ratios are left to queries."""

from collections.abc import Mapping
from itertools import pairwise

from prometheus_client import CollectorRegistry

from prolepsis.core.rounds import RemoteRounds
from prolepsis.core.stats import ProposerCounts, RequestStats
from prolepsis.core.telemetry.declare import BoundedCounter, counter, gauge
from prolepsis.core.telemetry.distribution import Distribution

_DEPTHS = (0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 32)
_PASSES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000)
_TOKENS_PER_PASS = (1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0)
_MOST_PAIRS = 80
"""Most pairs of proposer and traffic class."""


class ShadowCounters:
    """Drafts that were compared with plain decoding's tokens and not verified, counted apart from verified ones."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._drafts = counter(registry, "shadow_drafts", "Drafts compared in shadow", "proposer")
        self._drafted = counter(registry, "shadow_drafted_tokens", "Draft tokens compared in shadow", "proposer")
        self._accepted = counter(
            registry, "shadow_accepted_tokens", "Draft tokens that would have been accepted", "proposer"
        )

    def count(self, proposers: Mapping[str, ProposerCounts]) -> None:
        """Add one request's counts."""
        for name, counts in proposers.items():
            self._drafts.labels(name).inc(counts.num_drafts)
            self._drafted.labels(name).inc(counts.num_draft_tokens)
            self._accepted.labels(name).inc(counts.num_accepted)


class SpecDecodeCounters:
    """By proposer and traffic class, by position, and over all drafts."""

    def __init__(self, registry: CollectorRegistry) -> None:
        text = "Proposer calls that raised or returned nonsense"
        self.failures = counter(registry, "spec_decode_proposer_failures", text, "proposer")
        text = "Decoding steps of a sample without a draft, by why"
        self._plain_steps = counter(registry, "spec_decode_num_plain_steps", text, "reason")
        self._acceptance = _Acceptance(registry)
        self._depth = _Depth(registry)
        self._cost = _Cost(registry)
        text = "Passes of the target that emitted tokens of a request"
        self._passes = Distribution(registry, "request_target_passes", text, "mode", buckets=_PASSES)
        text = "Mean tokens of a pass of the target, per request"
        self._per_pass = Distribution(registry, "request_tokens_per_pass", text, "mode", buckets=_TOKENS_PER_PASS)

    def count(self, stats: RequestStats) -> None:
        """Add one request's counts."""
        for reason, count in stats.plain_steps.items():
            self._plain_steps.labels(reason).inc(count)
        if stats.num_steps:
            self._passes.labels(stats.mode.mode).add(stats.num_steps)
            self._per_pass.labels(stats.mode.mode).add(stats.acceptance_length)
        if stats.proposers:
            for name, counts in stats.proposers.items():
                self._acceptance.count(name, stats.traffic_class or "none", counts)
            self._depth.count(stats)
            self._cost.count(stats)


class _Acceptance:
    """A draft counts for the proposer that brought its first token, each token for the proposer that brought it."""

    def __init__(self, registry: CollectorRegistry) -> None:
        by = ("proposer", "traffic_class")

        def pairs(name: str, text: str) -> BoundedCounter:
            return counter(registry, f"spec_decode_num_{name}", text, *by, most=_MOST_PAIRS)

        def positions(name: str, text: str) -> BoundedCounter:
            return counter(registry, f"spec_decode_num_{name}_per_pos", text, "proposer", "position", most=160)

        self._drafts = pairs("drafts", "Drafts verified")
        self._draft_tokens = pairs("draft_tokens", "Draft tokens verified")
        self._accepted = pairs("accepted_tokens", "Draft tokens accepted")
        self._failed_first = pairs("first_token_failures", "Drafts whose first token was rejected")
        self._drafted_per_pos = positions("draft_tokens", "Draft tokens verified by position in the draft")
        self._accepted_per_pos = positions("accepted_tokens", "Draft tokens accepted by position in the draft")

    def count(self, proposer: str, traffic_class: str, counts: ProposerCounts) -> None:
        pair = (proposer, traffic_class)
        self._drafts.labels(*pair).inc(counts.num_drafts)
        self._draft_tokens.labels(*pair).inc(counts.num_draft_tokens)
        self._accepted.labels(*pair).inc(counts.num_accepted)
        if counts.per_position:
            drafted, accepted = counts.per_position[0]
            self._failed_first.labels(*pair).inc(drafted - accepted)
        for position, (drafted, accepted) in enumerate(counts.per_position):
            self._drafted_per_pos.labels(proposer, str(position)).inc(drafted)
            self._accepted_per_pos.labels(proposer, str(position)).inc(accepted)


class _Depth:
    """Lengths of drafts and of their accepted parts; positions of a merged draft count for several proposers."""

    def __init__(self, registry: CollectorRegistry) -> None:
        text = "Tokens of a draft"
        self._drafted = Distribution(registry, "spec_decode_draft_depth_tokens", text, buckets=_DEPTHS)
        text = "Tokens of a draft that were accepted"
        self._accepted = Distribution(registry, "spec_decode_accepted_depth_tokens", text, buckets=_DEPTHS)

    def count(self, stats: RequestStats) -> None:
        positions = [counts.per_position for counts in stats.proposers.values()]
        if not any(positions):  # of an upstream engine's drafts they are not known
            return
        for kind, shown in enumerate((self._drafted, self._accepted)):
            reached = [stats.num_drafts]
            for place in range(max(map(len, positions))):
                reached.append(sum(one[place][kind] for one in positions if place < len(one)))
            for depth, (number, farther) in enumerate(pairwise([*reached, 0])):
                shown.labels().add(depth, number - farther)


class _Cost:
    """Device time of speculation, and the part of it for rejected tokens."""

    def __init__(self, registry: CollectorRegistry) -> None:
        text = "Device time of making and verifying drafts"
        self._spent = counter(registry, "spec_decode_seconds", text, "traffic_class")
        text = "Of this, the part of the draft tokens that were rejected"
        self._rejected = counter(registry, "spec_decode_correction_seconds", text, "traffic_class")

    def count(self, stats: RequestStats) -> None:
        name, spent = stats.traffic_class or "none", stats.device.speculation
        self._spent.labels(name).inc(spent)
        if stats.num_draft_tokens:
            self._rejected.labels(name).inc(spent * (1.0 - stats.num_accepted / stats.num_draft_tokens))


_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)


class RemoteMetrics:
    """Metrics of one engine's remote proposer."""

    def __init__(self, registry: CollectorRegistry) -> None:
        text = "Drafts that the remote proposer was asked for, by what became of them"
        self._drafts = counter(registry, "remote_proposer_drafts", text, "outcome")
        text = "Time from asking for drafts until the engine saw the answer"
        self._seconds = Distribution(registry, "remote_proposer_round_seconds", text, buckets=_BUCKETS).labels()
        text = "1 while the remote proposer is connected to its server"
        self._connected = gauge(registry, "remote_proposer_connected", text, "proposer")

    def count(self, rounds: RemoteRounds) -> None:
        """Add what was reported."""
        self._connected.labels("remote").set(rounds.is_connected)
        for outcome, number in rounds.outcomes.items():
            self._drafts.labels(outcome).inc(number)
        for seconds in rounds.seconds:
            self._seconds.add(seconds)
