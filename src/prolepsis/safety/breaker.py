"""When a breaker opens, how long it stays open, and what it takes to close."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import sqrt
from typing import Literal, Self

from pydantic import TypeAdapter

from prolepsis.core.plan import LeftOut
from prolepsis.core.stats import TrafficClassCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerSettings:
    """Thresholds to close are stricter than those to open: between the two nothing changes (hysteresis)."""

    min_acceptance: float = 0.1
    """Opens where the first drafted token is surely right less often."""
    acceptance_to_close: float = 0.15
    min_judged: int = 64
    """Judged drafts before acceptance says anything."""
    max_cost: float = 1.25
    """Opens where drafts surely cost more than this many tokens for each that they bring."""
    cost_to_close: float = 1.0
    min_rounds: int = 64
    """Verified drafts before cost says anything."""
    half_life: float = 256.0
    """Judged drafts, or rounds, after which what was seen counts half."""
    sureness: float = 3.0
    """Standard errors that a threshold is from what is seen: breakers look all the time."""
    errors_in_row: int = 5
    late_in_row: int = 3
    open_s: float = 10.0
    """Of the first time that it is open; doubles with every probe round that fails."""
    longest_open_s: float = 600.0
    calm_s: float = 300.0
    """After so long closed, the next time it opens is a first time again."""
    probes: int = 256
    """Drafts asked for in a probe round, at most."""
    min_probed: int = 24
    """Of them judged before the round is decided."""

    def __post_init__(self) -> None:
        assert 0.0 <= self.min_acceptance <= self.acceptance_to_close <= 1.0, (
            "closing asks for more than staying closed"
        )
        assert 0.0 < self.cost_to_close <= self.max_cost, "closing asks for more than staying closed"
        assert 0 < self.min_probed <= self.probes, "a probe round can be decided"
        assert 0.0 < self.open_s <= self.longest_open_s, "back-off grows"


@dataclass(frozen=True, slots=True)
class Window:
    """Weights in place of counts; see `SliceCounts` for what each is."""

    judged: float = 0.0
    right: float = 0.0
    rounds: float = 0.0
    spent: float = 0.0
    gained: float = 0.0
    gained_squared: float = 0.0

    def add(self, before: TrafficClassCounts, after: TrafficClassCounts, half_life: float) -> Self:
        """Return the window after another reading, of which `before` is the part that it has seen."""
        num_judged, num_rounds = after.num_judged - before.num_judged, after.num_rounds - before.num_rounds
        by_judged, by_rounds = 0.5 ** (num_judged / half_life), 0.5 ** (num_rounds / half_life)
        return type(self)(
            self.judged * by_judged + num_judged,
            self.right * by_judged + after.num_right - before.num_right,
            self.rounds * by_rounds + num_rounds,
            self.spent * by_rounds + after.spent - before.spent,
            self.gained * by_rounds + after.gained - before.gained,
            self.gained_squared * by_rounds + after.gained_squared - before.gained_squared,
        )

    @property
    def acceptance(self) -> float | None:
        """Share of judged drafts whose first token was right; None before any was."""
        return min(1.0, self.right / self.judged) if self.judged else None

    def highest_acceptance(self, sureness: float) -> float:
        """Return the most that it can be, by so many standard errors (Wilson's score interval, 1927)."""
        if not self.judged:
            return 1.0
        share, square = min(1.0, self.right / self.judged), sureness * sureness
        spread = sureness * sqrt(share * (1.0 - share) / self.judged + square / (4.0 * self.judged**2))
        return (share + square / (2.0 * self.judged) + spread) / (1.0 + square / self.judged)

    def most_gained(self, sureness: float) -> float:
        """Return the most that was to be expected of these rounds, by so many standard errors of what they gained."""
        return self.gained + sureness * sqrt(self.gained_squared + 1.0)


State = Literal["closed", "open", "half_open", "forced_open", "forced_closed", "metrics_only"]
"""half_open: probed; forced ones are set by hand and stay; metrics_only says when it would open, and does nothing."""
ByHand = Literal["forced_open", "forced_closed", "metrics_only", "closed"]
"""What an operator may set; closed: back to deciding by itself."""


@dataclass(frozen=True, slots=True)
class Breaker:
    """One proposer for one traffic class. Times in seconds, of one monotonic clock."""

    proposer: str
    traffic_class: str
    state: State = "closed"
    since: float = 0.0
    open_s: float = 0.0
    """How long it was last open; 0: not yet, or so long ago that it does not count."""
    probe_round: int = 0
    seen: TrafficClassCounts = field(default_factory=lambda: TrafficClassCounts("", ""))
    """The last reading."""
    began: TrafficClassCounts = field(default_factory=lambda: TrafficClassCounts("", ""))
    """The reading at which the state began."""
    window: Window = field(default_factory=Window)

    def entered(self, state: State, now: float) -> Self:
        """Return it in `state` from `now` on, with nothing remembered of before."""
        return replace(self, state=state, since=now, began=self.seen, window=Window())

    def left_out(self, probes: int) -> LeftOut | None:
        """Return what a plan has to say of it; `probes`: drafts of a probe round. None: its proposer may draft."""
        if self.state in ("open", "forced_open"):
            return LeftOut(self.proposer, self.traffic_class)
        return (
            LeftOut(self.proposer, self.traffic_class, probes, self.probe_round) if self.state == "half_open" else None
        )


TripReason = Literal[
    "acceptance",  # the first drafted token is right too seldom
    "cost",  # drafts cost more than they bring
    "errors",  # calls raised, or drafts were nonsense, several in a row
    "late",  # so were calls that took too long
    "cliff",  # acceptance fell to nearly nothing at once (`control.drift`)
]
Reason = (
    TripReason
    | Literal[
        "back_off_over",  # open long enough: it is probed
        "recovered",  # the probe round went well
        "no_evidence",  # the probe round ended with too little to judge by
        "exchanged",  # another proposer took its place, or the engine was started anew
        "by_hand",
    ]
)


@dataclass(frozen=True, slots=True)
class BreakerEvent:
    """`before` is `after` where a breaker that only measures would have opened."""

    at: float
    proposer: str
    traffic_class: str
    before: State
    after: State
    reason: Reason
    acceptance: float | None
    """Of the drafts' first tokens, over `judged` drafts (older ones fade); None: none was judged."""
    judged: float
    spent: float
    """Tokens that drafting and verifying cost, over `rounds` verified drafts, and those that it brought."""
    gained: float
    rounds: float
    errors_in_row: int
    late_in_row: int
    open_s: float
    """Where it opened: until it is probed."""
    by: str = ""
    """Who did it by hand."""

    def to_json(self) -> bytes:
        return _EVENT.dump_json(self)


def event(before: Breaker, after: Breaker, reason: Reason, now: float, by: str = "") -> BreakerEvent:
    """Return the event of a change; the numbers are those of `before`, which decided."""
    window, seen = before.window, before.seen
    return BreakerEvent(
        at=now,
        proposer=after.proposer,
        traffic_class=after.traffic_class,
        before=before.state,
        after=after.state,
        reason=reason,
        acceptance=window.acceptance,
        judged=window.judged,
        spent=window.spent,
        gained=window.gained,
        rounds=window.rounds,
        errors_in_row=seen.errors_in_row,
        late_in_row=seen.late_in_row,
        open_s=after.open_s,
        by=by,
    )


_EVENT = TypeAdapter(BreakerEvent)


Stepped = tuple[Breaker, tuple[BreakerEvent, ...]]
"""The breaker after, and what happened."""


def step(breaker: Breaker, counts: TrafficClassCounts, now: float, settings: BreakerSettings) -> Stepped:
    """Return the breaker at `now` (seconds) after a reading of its counts.

    Counts that fell are another proposer's: it begins anew, closed, unless it was set by hand. A clock that went back
    lengthens a wait by no more than it was.
    """
    if counts.num_asked < breaker.seen.num_asked or counts.num_judged < breaker.seen.num_judged:
        return _exchanged(breaker, counts, now)
    window = breaker.window.add(breaker.seen, counts, settings.half_life)
    breaker = replace(breaker, seen=counts, window=window, since=min(breaker.since, now))
    if breaker.state in ("closed", "metrics_only"):
        reason = _why_open(breaker, settings)
        return _open(breaker, reason, now, settings) if reason else (breaker, ())
    if breaker.state == "open" and now - breaker.since >= breaker.open_s:
        probed = replace(breaker.entered("half_open", now), probe_round=breaker.probe_round + 1)
        return probed, (event(breaker, probed, "back_off_over", now),)
    return _probe(breaker, now, settings) if breaker.state == "half_open" else (breaker, ())


def trip(breaker: Breaker, reason: TripReason, now: float, settings: BreakerSettings) -> Stepped:
    """Open a closed breaker for what something else has seen; it is probed like any other. Others stay as they are."""
    return _open(breaker, reason, now, settings) if breaker.state in ("closed", "metrics_only") else (breaker, ())


def set_by_hand(breaker: Breaker, to: ByHand, now: float, by: str) -> Stepped:
    """Return the breaker as an operator set it, with its event; what it is already, it stays."""
    if breaker.state == to:
        return breaker, ()
    after = replace(breaker.entered(to, now), open_s=0.0)
    return after, (event(breaker, after, "by_hand", now, by),)


def _exchanged(breaker: Breaker, counts: TrafficClassCounts, now: float) -> Stepped:
    by_itself = breaker.state in ("open", "half_open")
    fresh = replace(breaker, seen=counts).entered("closed" if by_itself else breaker.state, now)
    fresh = replace(fresh, open_s=0.0)
    return fresh, (event(breaker, fresh, "exchanged", now),) if by_itself else ()


def _why_open(breaker: Breaker, settings: BreakerSettings) -> TripReason | None:
    window = breaker.window
    if in_row := _in_row(breaker, settings.errors_in_row, settings.late_in_row):
        return in_row
    highest = window.highest_acceptance(settings.sureness)
    if window.judged >= settings.min_judged and highest < settings.min_acceptance:
        return "acceptance"
    dear = window.spent > settings.max_cost * window.most_gained(settings.sureness)
    return "cost" if window.rounds >= settings.min_rounds and dear else None


def _in_row(breaker: Breaker, errors: int, late: int) -> TripReason | None:
    """Return what came so often in a row, and once at least since the state began."""
    seen, began = breaker.seen, breaker.began
    if seen.num_errors > began.num_errors and seen.errors_in_row >= errors:
        return "errors"
    return "late" if seen.num_late > began.num_late and seen.late_in_row >= late else None


def _open(breaker: Breaker, reason: TripReason, now: float, settings: BreakerSettings) -> Stepped:
    """Open it, or say that it would open where it only measures."""
    if breaker.state == "metrics_only":
        return breaker.entered("metrics_only", now), (event(breaker, breaker, reason, now),)
    longer = breaker.state == "half_open" or (breaker.open_s > 0.0 and now - breaker.since < settings.calm_s)
    open_s = min(settings.longest_open_s, 2.0 * breaker.open_s) if longer else settings.open_s
    after = replace(breaker.entered("open", now), open_s=open_s)
    return after, (event(breaker, after, reason, now),)


def _probe(breaker: Breaker, now: float, settings: BreakerSettings) -> Stepped:
    """Decide a probe round as soon as there is enough to decide it by."""
    seen, began = breaker.seen, breaker.began
    enough = seen.num_judged - began.num_judged >= settings.min_probed
    reason = _in_row(breaker, 1, 1) or (_why_not_close(breaker, settings) if enough else None)
    if reason is not None:
        return _open(breaker, reason, now, settings)
    if enough:
        return _end_round(breaker, "closed", "recovered", now)
    used_up = seen.num_asked - began.num_asked >= settings.probes
    return _end_round(breaker, "open", "no_evidence", now) if used_up else (breaker, ())


def _why_not_close(breaker: Breaker, settings: BreakerSettings) -> TripReason | None:
    window = breaker.window
    if window.right < settings.acceptance_to_close * window.judged:
        return "acceptance"
    return "cost" if window.spent > settings.cost_to_close * window.most_gained(1.0) else None


def _end_round(breaker: Breaker, state: Literal["closed", "open"], reason: Reason, now: float) -> Stepped:
    after = breaker.entered(state, now)
    return after, (event(breaker, after, reason, now),)


Key = tuple[str, str]
"""Proposer and traffic class."""


class Breakers:
    """One breaker for each pair of proposer and traffic class that the engine counts, or that somebody set by hand."""

    def __init__(self, settings: BreakerSettings, *, metrics_only: bool = False) -> None:
        """`metrics_only`: all begin so; they say when they would open, and nothing is left out."""
        self._settings = settings
        self._begin_as: ByHand = "metrics_only" if metrics_only else "closed"
        self._breakers: dict[Key, Breaker] = {}

    @property
    def all(self) -> Mapping[Key, Breaker]:
        return self._breakers

    def observe(self, counts: Iterable[TrafficClassCounts], now: float) -> Sequence[BreakerEvent]:
        """Take in the engine's counts at `now` (seconds); return what happened."""
        events: list[BreakerEvent] = []
        for reading in counts:
            key = (reading.proposer, reading.traffic_class)
            breaker = self._of(key, now)
            if breaker.state == "closed" and breaker.seen == reading:  # most of them, at most looks
                continue
            self._breakers[key], told = step(breaker, reading, now, self._settings)
            events += told
        return events

    def set(self, proposer: str, traffic_class: str, to: ByHand, now: float, by: str) -> Sequence[BreakerEvent]:
        """Set one by hand, also before the engine counts anything of it; `closed` lets it decide by itself again."""
        key = (proposer, traffic_class)
        self._breakers[key], told = set_by_hand(self._of(key, now), to, now, by)
        return told

    def trip(self, proposer: str, traffic_class: str, reason: TripReason, now: float) -> Sequence[BreakerEvent]:
        """Open one for what something else has seen of its proposer."""
        key = (proposer, traffic_class)
        self._breakers[key], told = trip(self._of(key, now), reason, now, self._settings)
        return told

    def left_out(self) -> tuple[LeftOut, ...]:
        """Return what the plan is to leave out."""
        said = (breaker.left_out(self._settings.probes) for breaker in self._breakers.values())
        return tuple(entry for entry in said if entry is not None)

    def _of(self, key: Key, now: float) -> Breaker:
        return self._breakers.get(key) or Breaker(*key, state=self._begin_as, since=now)
