"""Delivery accounting: how many accepted draft tokens reach the client, and why the others do not."""

from collections import Counter as Tally
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from prometheus_client import CollectorRegistry, Counter

from prolepsis.api.deltas import Delta
from prolepsis.api.output.filtered import LostDrafts
from prolepsis.api.output.pipeline import OutputPolicies
from prolepsis.core.ended import DeliveredDrafts, RequestEnded
from prolepsis.core.events import Tokens
from prolepsis.core.stats import LossReason, ProposerCounts, RequestStats
from prolepsis.web.feature import Feature
from prolepsis.web.fields import Reply
from prolepsis.web.routes import READERS, Route, Routes


@dataclass(slots=True)
class Delivery:
    """Accepted draft tokens of one prompt's answers, by proposer, on their way to the client."""

    whole: bool = False
    """The answer goes out at its end, or not at all."""
    delivered: Tally[str] = field(default_factory=Tally)
    lost: LostDrafts = field(default_factory=Tally)
    emitted: Tally[str] = field(default_factory=Tally)
    """From the engine's events, for requests whose last event never comes."""

    def see(self, event: Tokens) -> None:
        for name in event.accepted_by:
            self.emitted[name] += 1

    def passed(self, delta: Delta) -> None:
        """The client's side has taken `delta`."""
        for name in delta.delivered:
            self.delivered[name] += 1

    def left(self) -> None:
        """The client went away, or the request failed, before the end."""
        if self.whole:
            self.delivered.clear()

    def filled(self, stats: RequestStats) -> RequestStats:
        """Return the counts with what was delivered and what was not, and why."""
        if not stats.proposers and not self.emitted:
            return stats
        counts = {name: _with_emitted(stats.proposers.get(name), number) for name, number in self.emitted.items()}
        counts = {**stats.proposers, **counts}
        lost: Tally[LossReason] = Tally()
        for (_, reason), number in self.lost.items():
            lost[reason] += number
        lost["ended"] = sum(count.num_cut for count in counts.values())
        lost["left"] = sum(count.num_accepted for count in counts.values())
        lost["left"] -= self.delivered.total() + lost["stop_string"] + lost["policy"]
        proposers = {name: replace(count, num_delivered=self.delivered[name]) for name, count in counts.items()}
        return replace(stats, proposers=proposers, lost={reason: n for reason, n in lost.items() if n > 0})

    def by_proposer(self, stats: RequestStats) -> dict[str, DeliveredDrafts]:
        """Return what was delivered and lost of each proposer's drafts, given counts that are `filled`."""
        return {name: self._of(name, counts) for name, counts in stats.proposers.items()}

    def _of(self, name: str, counts: ProposerCounts) -> DeliveredDrafts:
        delivered = counts.num_delivered or 0
        lost: dict[LossReason, int] = {reason: n for (who, reason), n in self.lost.items() if who == name}
        left = counts.num_accepted - delivered - sum(lost.values())
        lost |= {"ended": counts.num_cut, "left": max(0, left)}
        return DeliveredDrafts(counts.num_accepted + counts.num_cut, delivered, lost)


def _with_emitted(counts: ProposerCounts | None, number: int) -> ProposerCounts:
    """Return the engine's counts; where it has not told them, what its events say."""
    return counts if counts is not None else ProposerCounts(num_accepted=number)


@dataclass(slots=True)
class DeliveryCounts:
    """Draft tokens of ended requests: accepted by verification, delivered, and lost by reason."""

    verified: int = 0
    delivered: int = 0
    lost: Tally[LossReason] = field(default_factory=Tally)


class DeliveryMetrics:
    """By proposer and traffic class, of which there are few."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            labels = ("proposer", "traffic_class", *labels)
            return Counter(f"prolepsis_delivery_{name}_tokens", text, labels, registry=registry)

        self.verified = counter("verified", "Draft tokens that verification accepted")
        self.delivered = counter("delivered", "Of these, those that reached the client")
        self.lost = counter("lost", "Of these, those that did not", "reason")


class DeliveryFeature(Feature):
    """Counts by proposer and traffic class, of which there are few. Belongs to one event loop."""

    name = "delivery"

    def __init__(self, registry: CollectorRegistry) -> None:
        self._metrics = DeliveryMetrics(registry)
        self._counts: dict[tuple[str, str], DeliveryCounts] = {}

    @property
    def counts(self) -> Mapping[tuple[str, str], DeliveryCounts]:
        return self._counts

    def on_request_end(self, ended: RequestEnded) -> None:
        """Count what was delivered of a request."""
        for prompt in ended.prompts:
            for name, drafts in prompt.delivery.items():
                self._count((name, prompt.request.traffic_class), drafts)

    def _count(self, key: tuple[str, str], drafts: DeliveredDrafts) -> None:
        counts = self._counts.setdefault(key, DeliveryCounts())
        counts.verified += drafts.num_verified
        counts.delivered += drafts.num_delivered
        counts.lost.update(drafts.lost)
        self._metrics.verified.labels(*key).inc(drafts.num_verified)
        self._metrics.delivered.labels(*key).inc(drafts.num_delivered)
        for reason, number in drafts.lost.items():
            self._metrics.lost.labels(*key, reason).inc(number)


class OutputPolicyReply(Reply):
    name: str
    on_fault: str
    timeout_ms: float
    max_held: int


class DeliveredReply(Reply):
    """Drafted tokens of ended requests, by proposer and traffic class."""

    proposer: str
    traffic_class: str
    num_verified: int
    num_delivered: int
    lost: dict[LossReason, int]


class DeliveryReply(Reply):
    policies: list[OutputPolicyReply]
    """In the order in which they read."""
    delivered: list[DeliveredReply]


def delivery_reply(delivery: DeliveryFeature, output: OutputPolicies) -> DeliveryReply:
    """Return what is configured, and what came of drafted tokens since the server started."""
    return DeliveryReply(
        policies=[
            OutputPolicyReply(
                name=one.name,
                on_fault="open" if one.fails_open else "closed",
                timeout_ms=1000.0 * one.timeout_s,
                max_held=one.max_held,
            )
            for one in output.loaded
        ],
        delivered=[
            DeliveredReply(
                proposer=proposer,
                traffic_class=traffic_class,
                num_verified=counts.verified,
                num_delivered=counts.delivered,
                lost={reason: number for reason, number in counts.lost.items() if number},
            )
            for (proposer, traffic_class), counts in sorted(delivery.counts.items())
        ],
    )


def delivery_routes(delivery: DeliveryFeature, output: OutputPolicies) -> Sequence[Route]:
    """Return the route that shows delivery and the output policies."""
    routes = Routes()

    @routes.get("/admin/delivery", roles=READERS, summary="Accepted and delivered draft tokens; output policies")
    async def shown() -> DeliveryReply:
        return delivery_reply(delivery, output)

    return routes.all
