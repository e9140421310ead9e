"""A breaker as a pure function: state and a reading of the counts in, state and events out."""

from dataclasses import replace
from typing import Literal

from prolepsis.control.breaker.events import BreakerEvent, Reason, TripReason, event
from prolepsis.control.breaker.settings import BreakerSettings
from prolepsis.control.breaker.state import Breaker, ByHand
from prolepsis.core.slice_counts import SliceCounts

Stepped = tuple[Breaker, tuple[BreakerEvent, ...]]
"""The breaker after, and what happened."""


def step(breaker: Breaker, counts: SliceCounts, now: float, settings: BreakerSettings) -> Stepped:
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


def _exchanged(breaker: Breaker, counts: SliceCounts, now: float) -> Stepped:
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
