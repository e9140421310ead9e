"""Counts cost and gain of each proposer by traffic class, and the half-open trials of proposers that a plan disables.

Acceptance is counted on every draft that is judged (`engine.drafting.acceptance`), verified or not: how often a
proposer is asked, or what the window cuts, does not select the trials. Time is counted in tokens, at the marginal cost
of its own step.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields

from prolepsis.core.kill_scope import killed_proposers
from prolepsis.core.plan import DisabledProposer, SpecPlan
from prolepsis.core.reasons import PlainReason
from prolepsis.core.requests import UNCOUNTED_CLASS
from prolepsis.core.stats import GrowingCounts, TenantCounts, TrafficClassCounts
from prolepsis.engine.drafting.draft import Draft
from prolepsis.engine.drafting.effort import MarginalCost
from prolepsis.engine.drafting.proposer import SequenceView

_MOST = 1024  # pairs of proposer and traffic class; others are not counted
MOST_TENANTS = 8
"""Tenants of such a pair that are kept apart: the last that drafted, among them any with most of the drafts."""


@dataclass(slots=True)
class _Part:
    """`TenantCounts` while they grow. A part of another count is written after it and read before it."""

    num_right: int = 0
    num_judged: int = 0
    num_asked: int = 0
    gained_squared: float = 0.0
    gained: float = 0.0
    spent: float = 0.0
    num_rounds: int = 0


@dataclass(slots=True)
class _TenantPart(_Part):
    counted_at: int = 0  # when it was counted last, in counts of all tenants


@dataclass(slots=True)
class _Tally(_Part):
    """`TrafficClassCounts` while they grow, likewise."""

    errors_in_row: int = 0
    num_errors: int = 0
    late_in_row: int = 0
    num_late: int = 0
    num_overdue: int = 0
    is_lost: bool = False
    tenants: dict[str, _TenantPart] = field(default_factory=dict)
    num_counted: int = 0

    def part(self, tenant: str) -> _TenantPart:
        """Return what to count for a tenant, in place of the one that was counted longest ago if they are too many."""
        self.num_counted += 1
        part = self.tenants.get(tenant)
        if part is None:
            if len(self.tenants) >= MOST_TENANTS:
                del self.tenants[min(self.tenants, key=lambda name: self.tenants[name].counted_at)]
            part = self.tenants[tenant] = _TenantPart()
        part.counted_at = self.num_counted
        return part

    def counts(self, proposer: str, traffic_class: str) -> TrafficClassCounts:
        parts = tuple(
            TenantCounts(tenant, **{name: getattr(part, name) for name in _PARTS})
            for tenant, part in list(self.tenants.items())
        )
        return TrafficClassCounts(
            proposer, traffic_class, **{name: getattr(self, name) for name in _COUNTS}, tenants=parts
        )


_PARTS = tuple(field.name for field in fields(_Part))
_COUNTS = tuple(field.name for field in fields(_Tally) if field.name not in ("tenants", "num_counted"))


Origin = tuple[str, str]  # traffic class and tenant of a sequence


def origin_of(sequence: SequenceView) -> Origin:
    return sequence.traffic_class, sequence.tenant


class Ledger:
    """Written by the engine's thread, read by any. A call of more than `late_s` seconds is late."""

    def __init__(self, names: Sequence[str], *, late_s: float = 1.0) -> None:
        self._names = set(names)
        self._late_s = late_s
        self._tallies: dict[tuple[str, str], _Tally] = {}

    def counts(self) -> tuple[TrafficClassCounts, ...]:
        """Return all counts, from any thread; one step's may be split over two readings."""
        return tuple(tally.counts(*key) for key, tally in list(self._tallies.items()))

    def num_asked(self, proposer: str, traffic_class: str, tenants: frozenset[str] = frozenset()) -> int:
        """Return how many samples it was asked for, by some tenants or by all."""
        tally = self._tallies.get((proposer, traffic_class))
        if tally is None or not tenants:
            return tally.num_asked if tally else 0
        return sum(part.num_asked for tenant, part in tally.tenants.items() if tenant in tenants)

    def exchange(self, proposer: str) -> None:
        """Start over for another proposer of this name. Its counts stay, at zero, so that readers see them fall."""
        self._names.add(proposer)
        self._tallies = {key: _Tally() if key[0] == proposer else tally for key, tally in self._tallies.items()}

    def ask(self, proposer: str, origins: Sequence[Origin], seconds: float, costs: MarginalCost | None) -> None:
        """Count one call for sequences of `origins`; its time is theirs in equal parts."""
        late = seconds > self._late_s
        spent = 1000.0 * seconds * costs.ms / len(origins) if costs else 0.0
        classes: dict[str, _Tally] = {}
        for (traffic_class, tenant), number in Counter(origins).items() if len(origins) > 1 else ((origins[0], 1),):
            if (tally := self._of(proposer, traffic_class)) is not None:
                classes[traffic_class] = tally
                for part in (tally, tally.part(tenant)):
                    part.num_asked += number
                    part.spent += spent * number
        for tally in classes.values():
            tally.num_late += late
            tally.late_in_row = tally.late_in_row + 1 if late else 0

    def add(self, proposer: str, origin: Origin, counts: GrowingCounts) -> None:
        """Count drafts that were counted elsewhere."""
        traffic_class, tenant = origin
        if (tally := self._of(proposer, traffic_class)) is not None:
            for part in (tally, tally.part(tenant)):
                for name in _PARTS:
                    setattr(part, name, getattr(part, name) + getattr(counts, name))

    def judge(self, proposer: str, origin: Origin, *, right: bool) -> None:
        """Count a draft whose first token was committed, or another in its place."""
        traffic_class, tenant = origin
        if (tally := self._of(proposer, traffic_class)) is not None:
            for part in (tally, tally.part(tenant)):
                part.num_judged += 1
                part.num_right += right

    def verify(self, draft: Draft, path: Sequence[int], origin: Origin, costs: MarginalCost | None) -> None:
        """Count a verified draft whose nodes `path` were emitted, each node for its own proposer."""
        (traffic_class, tenant), sources = origin, draft.sources
        nodes = Counter(sources) if sources else {draft.proposer: len(draft.tokens)}
        for proposer, num_nodes in nodes.items():
            if (tally := self._of(proposer, traffic_class)) is not None:
                gained = sum(sources[node] == proposer for node in path) if sources else len(path)
                for part in (tally, tally.part(tenant)):
                    part.num_rounds += 1
                    part.spent += num_nodes * costs.token if costs else 0.0
                    part.gained += gained
                    part.gained_squared += gained * gained

    def fail(self, proposer: str, traffic_class: str) -> None:
        if (tally := self._of(proposer, traffic_class)) is not None:
            tally.num_errors += 1
            tally.errors_in_row += 1

    def lose(self, proposer: str, traffic_classes: Sequence[str]) -> None:
        """Count a call for sequences of `traffic_classes` that was not waited for."""
        for traffic_class in set(traffic_classes):
            if (tally := self._of(proposer, traffic_class)) is not None:
                tally.num_overdue += 1
                tally.is_lost = True

    def find(self, proposer: str) -> None:
        for key, tally in self._tallies.items():
            if key[0] == proposer:
                tally.is_lost = False

    def succeed(self, proposer: str, traffic_class: str) -> None:
        tally = self._tallies.get((proposer, traffic_class))
        if tally is not None:
            tally.errors_in_row = 0

    def _of(self, proposer: str, traffic_class: str) -> _Tally | None:
        tally = self._tallies.get((proposer, traffic_class))
        may_count = proposer in self._names and traffic_class != UNCOUNTED_CLASS
        if tally is None and may_count and len(self._tallies) < _MOST:
            tally = self._tallies[proposer, traffic_class] = _Tally()
        return tally


Grant = tuple[str, str, frozenset[str], int]  # proposer, traffic class, tenants, number of the half-open round


class DisabledProposers:
    """Says who may draft under a plan that disables or kills proposers, and counts the half-open trials it grants.

    A grant continues over plans that repeat it.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._granted_at: dict[Grant, int] = {}
        self._plan: SpecPlan | None = None
        self._by_traffic_class: dict[str, list[DisabledProposer]] = {}
        self._killed: frozenset[str] = frozenset()

    def allowed(
        self, origin: Origin, names: tuple[str, ...], plan: SpecPlan, *, compared: bool = False
    ) -> tuple[str, ...]:
        """Return the proposers of `names` that are not disabled; `compared`: their drafts are only compared."""
        if plan is not self._plan:
            self._plan, self._by_traffic_class = plan, {}
            self._killed = killed_proposers(plan.killed)
            granted: dict[Grant, int] = {}
            for entry in plan.disabled:
                self._by_traffic_class.setdefault(entry.traffic_class, []).append(entry)
                key = _grant(entry)
                granted[key] = self._granted_at[key] if key in self._granted_at else self._num_asked(entry)
            self._granted_at = granted
        traffic_class, tenant = origin
        disabled = {
            entry.proposer
            for entry in self._by_traffic_class.get(traffic_class, ())
            if (not entry.tenants or tenant in entry.tenants)
            and not (compared and entry.compared)
            and not (
                entry.num_trials > 0 and self._num_asked(entry) - self._granted_at[_grant(entry)] < entry.num_trials
            )
        }
        disabled |= self._killed
        return tuple(name for name in names if name not in disabled) if disabled else names

    def reason(self, names: tuple[str, ...]) -> PlainReason:
        """Return why none of `names` is allowed under the plan that was asked about last."""
        return "killed" if self._killed.issuperset(names) else "breaker_open"

    def exchange(self, proposer: str) -> None:
        """Let grants to another proposer of this name begin now: its counts began again."""
        self._granted_at = {grant: number for grant, number in self._granted_at.items() if grant[0] != proposer}
        self._plan = None

    def _num_asked(self, entry: DisabledProposer) -> int:
        return self._ledger.num_asked(entry.proposer, entry.traffic_class, entry.tenants)


def _grant(entry: DisabledProposer) -> Grant:
    return entry.proposer, entry.traffic_class, entry.tenants, entry.trial_round
