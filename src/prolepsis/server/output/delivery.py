"""Delivery accounting: how many accepted draft tokens reach the client, and why the others do not."""

from collections import Counter as Tally
from dataclasses import dataclass, field, replace

from prometheus_client import CollectorRegistry

from prolepsis.control.web.feature import Feature
from prolepsis.control.web.fields import Reply
from prolepsis.core.config import UPSTREAM
from prolepsis.core.ended import DeliveredDrafts, RequestEnded
from prolepsis.core.events import Tokens
from prolepsis.core.reasons import LossReason
from prolepsis.core.stats import ProposerCounts, RequestStats
from prolepsis.core.telemetry.declare import counter
from prolepsis.server.output.filtered import LostDrafts
from prolepsis.server.output.pipeline import OnFault, OutputPolicies
from prolepsis.server.text.deltas import Delta


@dataclass(slots=True)
class Delivery:
    """Accepted draft tokens of one prompt's answers, by proposer, on their way to the client."""

    whole: bool = False  # the answer goes out at its end, or not at all
    delivered: Tally[str] = field(default_factory=Tally)
    lost: LostDrafts = field(default_factory=Tally)
    emitted: Tally[str] = field(default_factory=Tally)
    """Counted from the engine's events, for requests whose last event never comes."""

    def see(self, event: Tokens) -> None:
        for name in event.accepted_by:
            self.emitted[name] += 1

    def passed(self, delta: Delta) -> None:
        for name in delta.delivered:
            self.delivered[name] += 1

    def left(self) -> None:
        """The client went away, or the request failed, before the end."""
        if self.whole:
            self.delivered.clear()

    def filled(self, stats: RequestStats) -> RequestStats:
        """Return the counts with what was delivered and what was not, and why.

        Upstream engines do not say which tokens were drafts, so nothing is known of the delivery of theirs.
        """
        if not stats.proposers and not self.emitted:
            return stats
        emitted = {name: ProposerCounts(num_accepted=number) for name, number in self.emitted.items()}
        counts = {name: count for name, count in {**emitted, **stats.proposers}.items() if name != UPSTREAM}
        lost: Tally[LossReason] = Tally()
        for (_, reason), number in self.lost.items():
            lost[reason] += number
        lost["ended"] = sum(count.num_cut for count in counts.values())
        lost["left"] = sum(count.num_accepted for count in counts.values())
        lost["left"] -= self.delivered.total() + lost["stop_string"] + lost["policy"]
        filled = {name: replace(count, num_delivered=self.delivered[name]) for name, count in counts.items()}
        proposers = {**stats.proposers, **filled}
        return replace(stats, proposers=proposers, lost={reason: n for reason, n in lost.items() if n > 0})

    def by_proposer(self, stats: RequestStats) -> dict[str, DeliveredDrafts]:
        """Return what was delivered and lost of each proposer's drafts, given counts that are `filled`."""
        found = dict[str, DeliveredDrafts]()
        for name, counts in stats.proposers.items():
            if counts.num_delivered is not None:
                lost: dict[LossReason, int] = {reason: n for (who, reason), n in self.lost.items() if who == name}
                left = counts.num_accepted - counts.num_delivered - sum(lost.values())
                lost |= {"ended": counts.num_cut, "left": max(0, left)}
                found[name] = DeliveredDrafts(counts.num_accepted + counts.num_cut, counts.num_delivered, lost)
        return found


@dataclass(slots=True)
class DeliveryCounts:
    """Draft tokens of ended requests: accepted by verification, delivered, and lost by reason."""

    proposer: str
    traffic_class: str
    num_verified: int = 0
    num_delivered: int = 0
    lost: Tally[LossReason] = field(default_factory=Tally)

    def add(self, drafts: DeliveredDrafts) -> None:
        self.num_verified += drafts.num_verified
        self.num_delivered += drafts.num_delivered
        self.lost += Tally(drafts.lost)


class OutputPolicyReply(Reply):
    name: str
    on_fault: OnFault
    timeout_ms: float
    max_held: int


class DeliveryReply(Reply):
    policies: list[OutputPolicyReply]  # in the order in which they read
    delivered: list[DeliveryCounts]


class DeliveryFeature(Feature):
    """Counts by proposer and traffic class, of which there are few. Belongs to one event loop."""

    name = "delivery"

    def __init__(self, registry: CollectorRegistry, output: OutputPolicies) -> None:
        by = ("proposer", "traffic_class")
        text = "Draft tokens that verification accepted"
        self._verified = counter(registry, "delivery_verified_tokens", text, *by, most=80)
        text = "Verified draft tokens that reached the client"
        self._delivered = counter(registry, "delivery_delivered_tokens", text, *by, most=80)
        text = "Verified draft tokens that did not reach the client"
        self._lost = counter(registry, "delivery_lost_tokens", text, *by, "reason", most=160)
        self._counts: dict[tuple[str, str], DeliveryCounts] = {}
        self._output = output
        self.health_parts = {"delivery": self._shown}

    def _shown(self) -> DeliveryReply:
        policies = [OutputPolicyReply.model_validate(one, from_attributes=True) for one in self._output.loaded]
        return DeliveryReply(policies=policies, delivered=[counts for _, counts in sorted(self._counts.items())])

    def on_request_end(self, ended: RequestEnded) -> None:
        for prompt in ended.prompts:
            for name, drafts in prompt.delivery.items():
                key = (name, prompt.request.traffic_class)
                self._counts.setdefault(key, DeliveryCounts(*key)).add(drafts)
                self._verified.labels(*key).inc(drafts.num_verified)
                self._delivered.labels(*key).inc(drafts.num_delivered)
                for reason, number in drafts.lost.items():
                    self._lost.labels(*key, reason).inc(number)
