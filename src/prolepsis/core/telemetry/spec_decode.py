"""Metrics of speculation, from the counts of requests that have ended; raw counts only, ratios are left to queries.

A draft counts for the proposer that brought its first token, each token for the proposer that brought it.
"""

from functools import partial
from itertools import pairwise

from prometheus_client import CollectorRegistry

from prolepsis.core.facts import PARTS, parts_of_class
from prolepsis.core.rounds import RemoteRounds
from prolepsis.core.stats import RequestStats
from prolepsis.core.telemetry.declare import counter, gauge
from prolepsis.core.telemetry.distribution import Distribution

_DEPTHS = (0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 32)
_PASSES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000)
_TOKENS_PER_PASS = (1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0)
_MOST_PAIRS = 80  # most pairs of proposer and traffic class


class SpecDecodeCounters:
    """By proposer and traffic class, by position, and over all drafts; of drafts in shadow by proposer."""

    def __init__(self, registry: CollectorRegistry) -> None:
        made = partial(counter, registry)
        pairs = partial(counter, registry, most=_MOST_PAIRS)
        by, by_position = ("proposer", "traffic_class"), ("proposer", "position")
        text = "Proposer calls that raised or returned nonsense"
        self.failures = made("spec_decode_proposer_failures", text, "proposer")
        text = "Decoding steps of a sample without a draft, by why"
        self._plain_steps = made("spec_decode_num_plain_steps", text, "reason")
        self._drafts = pairs("spec_decode_num_drafts", "Drafts verified", *by)
        self._drafted = pairs("spec_decode_num_draft_tokens", "Draft tokens verified", *by)
        self._accepted = pairs("spec_decode_num_accepted_tokens", "Draft tokens accepted", *by)
        text = "Drafts whose first token was rejected"
        self._failed_first = pairs("spec_decode_num_first_token_failures", text, *by)
        text = "Draft tokens verified by position in the draft"
        self._drafted_per_pos = made("spec_decode_num_draft_tokens_per_pos", text, *by_position, most=160)
        text = "Draft tokens accepted by position in the draft"
        self._accepted_per_pos = made("spec_decode_num_accepted_tokens_per_pos", text, *by_position, most=160)
        self._depths = [
            Distribution(registry, f"spec_decode_{kind}_depth_tokens", text, buckets=_DEPTHS).labels()
            for kind, text in (("draft", "Tokens of a draft"), ("accepted", "Tokens of a draft that were accepted"))
        ]
        text = "Draft tokens verified, by {} of the traffic class"
        self._by_part = {
            part: (
                made(f"spec_decode_num_draft_tokens_per_{part}", text.format(part), part),
                made(f"spec_decode_num_accepted_tokens_per_{part}", "Those of them that were accepted", part),
            )
            for part in PARTS
        }
        text = "Device time of making and verifying drafts"
        self._spent = made("spec_decode_seconds", text, "traffic_class")
        text = "Device time of making and verifying draft tokens that were rejected"
        self._rejected = made("spec_decode_correction_seconds", text, "traffic_class")
        text = "Passes of the target that emitted tokens of a request"
        self._passes = Distribution(registry, "request_target_passes", text, "mode", buckets=_PASSES)
        text = "Mean tokens of a pass of the target, per request"
        self._per_pass = Distribution(registry, "request_tokens_per_pass", text, "mode", buckets=_TOKENS_PER_PASS)
        self._shadow = {
            made("shadow_drafts", "Drafts compared in shadow", "proposer"): "num_drafts",
            made("shadow_drafted_tokens", "Draft tokens compared in shadow", "proposer"): "num_draft_tokens",
            made("shadow_accepted_tokens", "Draft tokens that would have been accepted", "proposer"): "num_accepted",
        }

    def count(self, stats: RequestStats) -> None:
        for reason, count in stats.plain_steps.items():
            self._plain_steps.labels(reason).inc(count)
        if stats.num_steps:
            self._passes.labels(stats.mode.mode).add(stats.num_steps)
            self._per_pass.labels(stats.mode.mode).add(stats.acceptance_length)
        if stats.proposers:
            self._count_drafts(stats)
            self._count_depths(stats)
        for name, counts in stats.shadow.items():
            for series, field in self._shadow.items():
                series.labels(name).inc(getattr(counts, field))

    def _count_drafts(self, stats: RequestStats) -> None:
        traffic_class = stats.traffic_class or "none"
        for name, counts in stats.proposers.items():
            self._drafts.labels(name, traffic_class).inc(counts.num_drafts)
            self._drafted.labels(name, traffic_class).inc(counts.num_draft_tokens)
            self._accepted.labels(name, traffic_class).inc(counts.num_accepted)
            if counts.per_position:
                drafted, accepted = counts.per_position[0]
                self._failed_first.labels(name, traffic_class).inc(drafted - accepted)
            for position, (drafted, accepted) in enumerate(counts.per_position):
                self._drafted_per_pos.labels(name, str(position)).inc(drafted)
                self._accepted_per_pos.labels(name, str(position)).inc(accepted)
        for part, value in parts_of_class(traffic_class).items():
            verified, right = self._by_part[part]
            verified.labels(value).inc(stats.num_draft_tokens)
            right.labels(value).inc(stats.num_accepted)
        self._spent.labels(traffic_class).inc(stats.device.speculation)
        self._rejected.labels(traffic_class).inc(stats.correction_s)

    def _count_depths(self, stats: RequestStats) -> None:
        """Count lengths of drafts and of their accepted parts; positions of a merged draft have several proposers."""
        positions = [counts.per_position for counts in stats.proposers.values()]
        if not any(positions):  # of some upstream engines' drafts they are not known
            return
        for kind, depths in enumerate(self._depths):
            reached = [stats.num_drafts]
            for place in range(max(map(len, positions))):
                reached.append(sum(each[place][kind] for each in positions if place < len(each)))
            for depth, (number, farther) in enumerate(pairwise([*reached, 0])):
                depths.add(depth, number - farther)


_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)


class RemoteMetrics:
    """Metrics of one engine's remote proposer."""

    def __init__(self, registry: CollectorRegistry) -> None:
        text = "Drafts that the remote proposer was asked for: used, empty (it had none), late, stale, failed"
        self._drafts = counter(registry, "remote_proposer_drafts", text, "outcome")
        text = "Time from asking for drafts until the engine saw the answer"
        self._seconds = Distribution(registry, "remote_proposer_round_seconds", text, buckets=_BUCKETS).labels()
        text = "1 while the remote proposer is connected to its server"
        self._connected = gauge(registry, "remote_proposer_connected", text, "proposer")

    def count(self, rounds: RemoteRounds) -> None:
        self._connected.labels("remote").set(rounds.is_connected)
        for outcome, number in rounds.outcomes.items():
            self._drafts.labels(outcome).inc(number)
        for seconds in rounds.seconds:
            self._seconds.add(seconds)
