"""What happened to a breaker, with the numbers that decided, for logs, the audit log and people."""

from dataclasses import dataclass
from typing import Literal

from pydantic import TypeAdapter

from prolepsis.control.breaker.state import Breaker, State

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
    slice: str
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
        slice=after.slice,
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
