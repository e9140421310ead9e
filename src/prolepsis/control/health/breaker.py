"""The circuit breaker of a proposer for one traffic class: a pure state machine.

A breaker opens when its proposer's drafts are rejected too often, cost more than they gain, or fail. The engine then
leaves the proposer out for that traffic class, and the breaker probes it again after a back-off. Where the drafts that
are bad are those of a few tenants, it opens for these: they cannot take a proposer from the others.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

from prolepsis.control.health.windows import Window, Windows
from prolepsis.core.client_draft import BROUGHT_BY_CLIENTS
from prolepsis.core.plan import DisabledProposer
from prolepsis.core.stats import TrafficClassCounts

State = Literal["closed", "open", "half_open", "forced_open", "forced_closed", "metrics_only"]
"""half_open: probed. An operator sets the forced states, and they stay. metrics_only reports when the breaker would
open, and disables nothing."""
STATES: tuple[State, ...] = ("closed", "open", "half_open", "forced_open", "forced_closed", "metrics_only")
OperatorState = Literal["forced_open", "forced_closed", "metrics_only", "closed"]
"""The states that an operator may set; closed: the breaker decides again."""
TripReason = Literal[
    "acceptance",  # the first drafted token is accepted too rarely
    "cost",  # drafts cost more than they gain
    "errors",  # several calls in a row raised, or returned invalid drafts
    "late",  # several calls in a row took too long
    "overdue",  # a call took so long that it was not waited for
    "shared",  # it opened on another replica
    "cliff",  # acceptance suddenly fell to nearly nothing (`control.health.drift`)
]
Reason = (
    TripReason
    | Literal[
        "backoff_elapsed",  # it was open long enough, and is probed
        "recovered",  # the half-open round succeeded
        "no_evidence",  # the half-open round ended with too little evidence
        "replaced",  # another proposer took its place, or the engine restarted
        "operator",
    ]
)
Why = TripReason | Literal["operator"] | None
"""Why a breaker is in its state: what opened it, or an operator; None where it is closed or only measures."""
Key = tuple[str, str]  # proposer and traffic class


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerSettings:
    """Closing needs more than staying closed: between the two thresholds nothing changes (hysteresis)."""

    min_acceptance: float = 0.1  # the breaker opens if the acceptance of first drafted tokens is surely lower
    acceptance_to_close: float = 0.15
    min_judged: int = 64  # judged drafts before acceptance counts
    max_cost: float = 1.25
    """The breaker opens if drafts surely cost more than this many tokens for each token that they gain."""
    cost_to_close: float = 1.0
    min_rounds: int = 64  # verified drafts before cost counts
    half_life: float = 256.0  # judged drafts, or rounds, after which an observation has half its weight
    standard_errors: float = 3.0
    """Distance from a threshold that counts as sure. It is large because breakers are evaluated all the time."""
    errors_in_row: int = 5
    late_in_row: int = 3
    open_s: float = 10.0  # duration of the first open state; it doubles with every failed half-open round
    max_open_s: float = 600.0
    reset_after_s: float = 300.0  # after this time in the closed state the duration starts at `open_s` again
    probes: int = 256  # maximum number of drafts in a half-open round
    min_probed: int = 24  # judged drafts that decide a half-open round
    others_share: float = 0.25
    """Part of the judged drafts needed that tenants must have for their drafts to count as bad too."""
    least_blamed: int = 3
    """Tenants with bad drafts, more than half of those that drafted recently, for which it opens for all."""

    def __post_init__(self) -> None:
        assert 0.0 <= self.min_acceptance <= self.acceptance_to_close <= 1.0, "closing needs more than staying closed"
        assert 0.0 < self.cost_to_close <= self.max_cost, "closing needs more than staying closed"
        assert 0 < self.min_probed <= self.probes, "a half-open round can be decided"
        assert 0.0 < self.open_s <= self.max_open_s, "the back-off grows"


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerFigures:
    """Recent figures of one proposer in one traffic class; older ones fade."""

    proposer: str
    traffic_class: str
    acceptance: float | None  # acceptance of the first tokens of `judged` drafts; None: none was judged
    judged: float
    spent: float  # cost of drafting and verifying in tokens, over `rounds` verified drafts
    gained: float  # accepted tokens over the same rounds
    rounds: float
    errors_in_row: int
    late_in_row: int
    tenants: tuple[str, ...] = ()  # the only tenants for which it is not closed; none: it is in its state for all


@dataclass(frozen=True, slots=True)
class Breaker:
    """One proposer for one traffic class. Times in seconds of one monotonic clock."""

    proposer: str
    traffic_class: str
    state: State = "closed"
    since: float = 0.0
    open_s: float = 0.0  # duration of the last open state; 0: there was none, or it is too long ago to count
    reason: TripReason | None = None  # why it opened last
    trial_round: int = 0
    seen: TrafficClassCounts = field(default_factory=lambda: TrafficClassCounts("", ""))
    began: TrafficClassCounts = field(default_factory=lambda: TrafficClassCounts("", ""))
    """The reading at which the state began."""
    windows: Windows = field(default_factory=Windows)
    tenants: frozenset[str] = frozenset()
    """The only tenants for which it is open or probed, as the bad drafts were theirs; none: for all."""
    by: str = ""  # the operator who set its state; empty: it decides itself

    def entered(self, state: State, now: float) -> Self:
        """Return the breaker in `state` from `now` on, with an empty window."""
        tenants = self.tenants if state in ("open", "half_open") else frozenset[str]()
        return replace(self, state=state, since=now, began=self.seen, windows=Windows(), tenants=tenants, by="")

    @property
    def why(self) -> Why:
        if self.by or self.state in ("forced_open", "forced_closed"):
            return "operator"
        return self.reason if self.state in ("open", "half_open") else None

    @property
    def window(self) -> Window:
        return self.windows.whole

    @property
    def of_tenants(self) -> Self:
        """The breaker with the windows of its tenants, if it has any."""
        return replace(self, windows=self.windows.of(self.tenants)) if self.tenants else self

    @property
    def of_others(self) -> Self:
        """The breaker with the windows of all but its tenants."""
        return replace(self, windows=self.windows.without(self.tenants))

    def since_began(self, name: Literal["num_asked", "num_judged"]) -> int:
        """Return how much a count of its tenants, or of all, grew since the state began."""
        if not self.tenants:
            return int(getattr(self.seen, name) - getattr(self.began, name))
        began = {part.tenant: getattr(part, name) for part in self.began.tenants}
        grown = 0
        for part in self.seen.tenants:
            if part.tenant in self.tenants:
                now, before = getattr(part, name), began.get(part.tenant, 0)
                grown += now - before if now >= before else now
        return grown

    def disabled(self, probes: int) -> DisabledProposer | None:
        """Return the plan's entry for this breaker, None if its proposer may draft; `probes`: per half-open round."""
        compared = self.reason in _SOUND and self.state != "forced_open"
        key, tenants = (self.proposer, self.traffic_class), self.tenants
        if self.state in ("open", "forced_open"):
            return DisabledProposer(*key, compared=compared, tenants=tenants)
        if self.state == "half_open":
            return DisabledProposer(*key, probes, self.trial_round, compared, tenants)
        return None

    @property
    def is_judged(self) -> bool:
        """Whether bad drafts open it: those that one client brings must not take their proposer from all others."""
        return self.proposer not in BROUGHT_BY_CLIENTS

    @property
    def figures(self) -> dict[str, Any]:
        """The fields of `BreakerFigures`."""
        of_window = {name: getattr(self.window, name) for name in ("acceptance", "judged", "spent", "gained", "rounds")}
        in_row = {"errors_in_row": self.seen.errors_in_row, "late_in_row": self.seen.late_in_row}
        key = {"proposer": self.proposer, "traffic_class": self.traffic_class}
        return {**key, **of_window, **in_row, "tenants": tuple(sorted(self.tenants))}


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerEvent(BreakerFigures):
    """A change of a breaker, with the numbers that decided it.

    `before` equals `after` if a breaker in metrics_only would have opened.
    """

    at: float
    before: State
    after: State
    reason: Reason
    open_s: float  # seconds until it is probed, if it opened
    by: str = ""  # the operator, if one set it


_SOUND: tuple[TripReason, ...] = ("acceptance", "cost", "cliff")
"""Reasons to leave out a proposer that works: its drafts are too bad, and a few of them are still compared."""
Transition = tuple[Breaker, tuple[BreakerEvent, ...]]  # the breaker afterwards, and its events


def step(breaker: Breaker, counts: TrafficClassCounts, now: float, settings: BreakerSettings) -> Transition:
    """Return the breaker at `now` (seconds) after a reading of its counts.

    Counts that fell belong to another proposer: the breaker starts again, closed, unless an operator set it. A clock
    that went back extends a wait by at most the wait itself.
    """
    if counts.fell_from(breaker.seen):
        was_open = breaker.state in ("open", "half_open")
        fresh = replace(breaker, seen=counts).entered("closed" if was_open else breaker.state, now)
        fresh = replace(fresh, open_s=0.0)
        return fresh, (_event(breaker, fresh, "replaced", now),) if was_open else ()
    windows = breaker.windows.read(breaker.seen, counts, settings.half_life)
    breaker = replace(breaker, seen=counts, windows=windows, since=min(breaker.since, now))
    if breaker.tenants and (reason := _why_open(breaker.of_others, settings)):
        more = _blamed(replace(breaker.of_others, state="closed"), reason, settings)
        return _open_for_more(breaker, reason, now, settings, more)
    if breaker.state in ("closed", "metrics_only"):
        reason = _why_open(breaker, settings)
        return _open(breaker, reason, now, settings, _blamed(breaker, reason, settings)) if reason else (breaker, ())
    if breaker.state == "open" and now - breaker.since >= breaker.open_s and not counts.is_lost:
        probed = replace(breaker.entered("half_open", now), trial_round=breaker.trial_round + 1)
        return probed, (_event(breaker, probed, "backoff_elapsed", now),)
    return _probe(breaker, now, settings) if breaker.state == "half_open" else (breaker, ())


def trip(
    breaker: Breaker, reason: TripReason, now: float, settings: BreakerSettings, tenants: frozenset[str] = frozenset()
) -> Transition:
    """Open a closed breaker for an outside reason; it is probed as usual. Other states stay as they are.

    `tenants`: those for which it opened on another replica; none: all. For others than its own it is closed.
    """
    if breaker.tenants and reason == "shared" and not (tenants and tenants <= breaker.tenants):
        return _open_for_more(breaker, reason, now, settings, tenants)
    opens = breaker.state in ("closed", "metrics_only") and (breaker.is_judged or reason not in _SOUND)
    tenants = tenants or _blamed(breaker, reason, settings)
    return _open(breaker, reason, now, settings, tenants) if opens else (breaker, ())


def set_state(breaker: Breaker, state: OperatorState, now: float, by: str) -> Transition:
    """Return the breaker as an operator set it, with its event if the state changed."""
    if breaker.state == state:
        return breaker, ()
    after = replace(breaker.entered(state, now), open_s=0.0, by="" if state == "closed" else by)
    return after, (_event(breaker, after, "operator", now, by),)


def _why_open(breaker: Breaker, settings: BreakerSettings) -> TripReason | None:
    window = breaker.window
    if in_row := _in_row(breaker, settings.errors_in_row, settings.late_in_row):
        return in_row
    if not breaker.is_judged:
        return None
    highest = window.max_acceptance(settings.standard_errors)
    if window.judged >= settings.min_judged and highest < settings.min_acceptance:
        return "acceptance"
    is_costly = window.spent > settings.max_cost * window.max_gained(settings.standard_errors)
    return "cost" if window.rounds >= settings.min_rounds and is_costly else None


def _in_row(breaker: Breaker, errors: int, late: int) -> TripReason | None:
    """Return which failure came this often in a row, at least once since the state began; overdue calls at once."""
    seen, began = breaker.seen, breaker.began
    if seen.num_overdue > began.num_overdue:
        return "overdue"
    if seen.num_errors > began.num_errors and seen.errors_in_row >= errors:
        return "errors"
    return "late" if seen.num_late > began.num_late and seen.late_in_row >= late else None


def _open(
    breaker: Breaker, reason: TripReason, now: float, settings: BreakerSettings, tenants: frozenset[str]
) -> Transition:
    """Open the breaker for some tenants, or for all; in metrics_only, only report it."""
    if breaker.state == "metrics_only":
        return breaker.entered("metrics_only", now), (_event(breaker, breaker, reason, now),)
    longer = breaker.state == "half_open" or (breaker.open_s > 0.0 and now - breaker.since < settings.reset_after_s)
    open_s = min(settings.max_open_s, 2.0 * breaker.open_s) if longer else settings.open_s
    after = replace(breaker.entered("open", now), open_s=open_s, reason=reason, tenants=tenants)
    return after, (_event(breaker.of_tenants, after, reason, now),)


def _open_for_more(
    breaker: Breaker, reason: TripReason, now: float, settings: BreakerSettings, more: frozenset[str]
) -> Transition:
    """Open a breaker of some tenants for more of them, or for all; for these it was closed."""
    tenants = _or_all(breaker, breaker.tenants | more, settings) if more else more
    after = replace(breaker.entered("open", now), reason=reason, tenants=tenants)
    return after, (_event(replace(breaker.of_others, state="closed"), after, reason, now),)


def _blamed(breaker: Breaker, reason: TripReason, settings: BreakerSettings) -> frozenset[str]:
    """Return the tenants whose bad drafts are the reason, as far as those of the others are not bad too; none: all."""
    parts = breaker.windows.parts
    if reason not in _SOUND or not parts:
        return frozenset()
    needed = settings.others_share * (settings.min_probed if breaker.state == "half_open" else settings.min_judged)
    largest = sorted(parts, key=lambda tenant: parts[tenant].judged, reverse=True)
    bad = [name for name in largest if _why_not_close(replace(breaker, windows=breaker.windows.of((name,))), settings)]
    blamed = frozenset[str]()
    for tenant in bad or largest[:1]:
        blamed |= {tenant}
        others = replace(breaker, windows=breaker.windows.without(blamed))
        if others.window.judged < needed or _why_not_close(others, settings) is None:
            return _or_all(breaker, blamed, settings)
    return frozenset()


def _or_all(breaker: Breaker, blamed: frozenset[str], settings: BreakerSettings) -> frozenset[str]:
    """Return the tenants; none, which stands for all, if they are several and most of those that drafted recently."""
    recent = blamed | {tenant for tenant, window in breaker.windows.parts.items() if window.judged >= 1.0}
    are_most = len(blamed) >= settings.least_blamed and 2 * len(blamed) > len(recent)
    return frozenset() if are_most else blamed


def _probe(breaker: Breaker, now: float, settings: BreakerSettings) -> Transition:
    """Decide a half-open round as soon as there is enough evidence."""
    enough = breaker.since_began("num_judged") >= settings.min_probed
    reason = _in_row(breaker, 1, 1) or (_why_not_close(breaker.of_tenants, settings) if enough else None)
    if reason is not None:
        return _open(breaker, reason, now, settings, breaker.tenants or _blamed(breaker, reason, settings))
    if not enough and breaker.since_began("num_asked") < settings.probes:
        return breaker, ()
    after = breaker.entered("closed" if enough else "open", now)
    return after, (_event(breaker, after, "recovered" if enough else "no_evidence", now),)


def _why_not_close(breaker: Breaker, settings: BreakerSettings) -> TripReason | None:
    if not breaker.is_judged:
        return None
    window = breaker.window
    if window.right < settings.acceptance_to_close * window.judged:
        return "acceptance"
    return "cost" if window.spent > settings.cost_to_close * window.max_gained(1.0) else None


def _event(before: Breaker, after: Breaker, reason: Reason, now: float, by: str = "") -> BreakerEvent:
    """Return the event of a change; its numbers are those of `before`, which decided."""
    return BreakerEvent(
        at=now,
        before=before.state,
        after=after.state,
        reason=reason,
        open_s=after.open_s,
        by=by,
        **before.figures | {"tenants": after.figures["tenants"]},
    )


class Breakers:
    """One breaker for each pair of proposer and traffic class that the engine counts, or that an operator set."""

    def __init__(self, settings: BreakerSettings, *, metrics_only: bool = False) -> None:
        """`metrics_only`: all breakers start in that state."""
        self._settings = settings
        self._initial: OperatorState = "metrics_only" if metrics_only else "closed"
        self._breakers: dict[Key, Breaker] = {}

    @property
    def all(self) -> Mapping[Key, Breaker]:
        return self._breakers

    def observe(self, counts: Iterable[TrafficClassCounts], now: float) -> Sequence[BreakerEvent]:
        """Process the engine's counts at `now` (seconds); return the events."""
        events: list[BreakerEvent] = []
        for reading in counts:
            key = (reading.proposer, reading.traffic_class)
            breaker = self._of(key, now)
            if breaker.state == "closed" and breaker.seen == reading:  # the usual case
                continue
            self._breakers[key], changes = step(breaker, reading, now, self._settings)
            events += changes
        return events

    def set(self, key: Key, state: OperatorState, now: float, by: str) -> Sequence[BreakerEvent]:
        """Set a breaker for an operator; the engine need not have counted anything for it yet."""
        self._breakers[key], events = set_state(self._of(key, now), state, now, by)
        return events

    def trip(
        self, key: Key, reason: TripReason, now: float, tenants: frozenset[str] = frozenset()
    ) -> Sequence[BreakerEvent]:
        """Open a breaker for an outside reason; for some tenants, or for all."""
        self._breakers[key], events = trip(self._of(key, now), reason, now, self._settings, tenants)
        return events

    def disabled(self) -> tuple[DisabledProposer, ...]:
        """Return the proposers that the plan must leave out."""
        entries = (breaker.disabled(self._settings.probes) for breaker in self._breakers.values())
        return tuple(entry for entry in entries if entry is not None)

    def _of(self, key: Key, now: float) -> Breaker:
        return self._breakers.get(key) or Breaker(*key, state=self._initial, since=now)
