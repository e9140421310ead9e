"""The contract boundary of a server: its output policies, and how much of what verification accepted is delivered."""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from prolepsis.api.admission.group import Entry
from prolepsis.api.deltas import Delta
from prolepsis.api.output.chain import Chain, OutputPolicies
from prolepsis.api.output.contract import Contract, Lost
from prolepsis.api.output.policy import AnswerFacts
from prolepsis.core.events import Tokens
from prolepsis.core.stats import LossReason, ProposerCounts, RequestStats
from prolepsis.telemetry.contract import ContractMetrics


@dataclass(slots=True)
class Delivery:
    """Drafted tokens of one prompt's answers, by proposer, on their way to the client."""

    whole: bool = False
    """The answer goes out at its end, or not at all."""
    delivered: Counter[str] = field(default_factory=Counter)
    lost: Lost = field(default_factory=Counter)
    emitted: Counter[str] = field(default_factory=Counter)
    """As the engine's events say, for requests whose end nobody waits for."""

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
        lost: Counter[LossReason] = Counter()
        for (_, reason), number in self.lost.items():
            lost[reason] += number
        lost["ended"] = sum(count.num_cut for count in counts.values())
        lost["left"] = sum(count.num_accepted for count in counts.values())
        lost["left"] -= self.delivered.total() + lost["stop_string"] + lost["policy"]
        proposers = {name: replace(count, num_delivered=self.delivered[name]) for name, count in counts.items()}
        return replace(stats, proposers=proposers, lost={reason: n for reason, n in lost.items() if n > 0})

    def lost_of(self, name: str, counts: ProposerCounts) -> dict[LossReason, int]:
        """Return what one proposer lost, by why; `counts` are filled."""
        lost: dict[LossReason, int] = {reason: n for (who, reason), n in self.lost.items() if who == name}
        left = counts.num_accepted - (counts.num_delivered or 0) - sum(lost.values())
        return {**lost, "ended": counts.num_cut, "left": max(0, left)}


def _with_emitted(counts: ProposerCounts | None, number: int) -> ProposerCounts:
    """Return the engine's counts; where it has not told them, what its events say."""
    return counts if counts is not None else ProposerCounts(num_accepted=number)


@dataclass(slots=True)
class BoundaryCounts:
    """Drafted tokens of ended requests: accepted by verification, delivered, and lost by why."""

    verified: int = 0
    delivered: int = 0
    lost: Counter[LossReason] = field(default_factory=Counter)


class Boundary:
    """Belongs to one event loop. Counts are by proposer and traffic class, of which there are few by construction."""

    def __init__(self, policies: OutputPolicies | None = None, metrics: ContractMetrics | None = None) -> None:
        self.policies = policies or OutputPolicies()
        self._metrics = metrics
        self._counts: dict[tuple[str, str], BoundaryCounts] = {}

    @property
    def counts(self) -> Mapping[tuple[str, str], BoundaryCounts]:
        return self._counts

    def contract(self, answer: AnswerFacts, delivery: Delivery) -> Contract:
        """Return what stands between a sample and its client."""
        chain: Chain | None = self.policies.chain(answer) if self.policies.loaded else None
        return Contract(chain, delivery.lost)

    @contextmanager
    def counting(self, entry: Entry, delivery: Delivery) -> Iterator[None]:
        """Count the request of `entry`, which has ended when the block is left."""
        try:
            yield
        except BaseException:
            delivery.left()
            raise
        finally:
            stats = entry.client.ended.stats if entry.client.ended else RequestStats()
            self._count(entry.request.traffic_class, delivery.filled(stats), delivery)

    def _count(self, traffic_class: str, stats: RequestStats, delivery: Delivery) -> None:
        for name, counts in stats.proposers.items():
            lost = delivery.lost_of(name, counts)
            kept = self._counts.setdefault((name, traffic_class), BoundaryCounts())
            kept.verified += counts.num_accepted + counts.num_cut
            kept.delivered += counts.num_delivered or 0
            kept.lost.update(lost)
            if self._metrics is not None:
                self._metrics.verified.labels(name, traffic_class).inc(counts.num_accepted + counts.num_cut)
                self._metrics.delivered.labels(name, traffic_class).inc(counts.num_delivered or 0)
                for reason, number in lost.items():
                    self._metrics.lost.labels(name, traffic_class, reason).inc(number)
