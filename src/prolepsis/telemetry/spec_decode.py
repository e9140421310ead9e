"""Counters of speculation by proposer, fed from the counts of ended requests."""

from collections.abc import Mapping

from prometheus_client import CollectorRegistry

from prolepsis.core.stats import PlainReason, ProposerCounts
from prolepsis.telemetry.declare import counter


class ShadowCounters:
    """Drafts that were compared with plain decoding's tokens and not verified, apart from those that were."""

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
    """Raw counts only; a rate per label is a query."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.failures = counter(
            registry, "spec_decode_proposer_failures", "Proposer calls that raised or returned nonsense", "proposer"
        )
        self._drafts = counter(registry, "spec_decode_num_drafts", "Drafts verified", "proposer")
        self._draft_tokens = counter(registry, "spec_decode_num_draft_tokens", "Draft tokens verified", "proposer")
        self._accepted = counter(registry, "spec_decode_num_accepted_tokens", "Draft tokens accepted", "proposer")
        self._plain_steps = counter(
            registry, "spec_decode_num_plain_steps", "Decoding steps of a sample without a draft, by why", "reason"
        )
        self._accepted_per_pos = counter(
            registry,
            "spec_decode_num_accepted_tokens_per_pos",
            "Draft tokens accepted by position in the draft",
            "proposer",
            "position",
        )

    def count_plain(self, steps: Mapping[PlainReason, int]) -> None:
        """Add one request's decoding steps without a draft."""
        for reason, count in steps.items():
            self._plain_steps.labels(reason).inc(count)

    def count(self, proposers: Mapping[str, ProposerCounts]) -> None:
        """Add one request's counts."""
        for name, counts in proposers.items():
            self._drafts.labels(name).inc(counts.num_drafts)
            self._draft_tokens.labels(name).inc(counts.num_draft_tokens)
            self._accepted.labels(name).inc(counts.num_accepted)
            for position, (_, accepted) in enumerate(counts.per_position):
                self._accepted_per_pos.labels(name, str(position)).inc(accepted)
