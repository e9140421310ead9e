"""/admin/correctness: what requests that were decoded again showed."""

from collections.abc import Sequence
from typing import Literal

from prolepsis.api.room import Room
from prolepsis.correctness.mismatch import Found
from prolepsis.correctness.runtime import Replays
from prolepsis.web.fields import Reply
from prolepsis.web.routes import READERS, Route, Routes


class OutcomesReply(Reply):
    """Replays since the start, by what they showed; failed ones showed nothing."""

    match: int
    near_tie: int
    structural: int
    failed: int


class DroppedReply(Reply):
    """Requests that were to be decoded again and were not, by reason."""

    queue_full: int
    interrupted: int
    closed: int


class DifferenceReply(Reply):
    """A request that differs, and where it does first; margin and tolerance in logits."""

    at: float
    request_id: str
    route: str
    rule: str | None
    policy_version: str | None
    arm: str | None
    mode: str
    reason: str
    sample: int
    position: int
    kind: Literal["near_tie", "structural"]
    margin: float | None
    tolerance: float | None


class CorrectnessReply(Reply):
    enabled: bool
    share: float
    """Of finished requests, 0 to 1."""
    exactness: Literal["strict", "normal"]
    match_rate: float | None
    """Of the replays that could be compared; null before the first."""
    outcomes: OutcomesReply
    num_queued: int
    dropped: DroppedReply
    trip_after: int
    """Every so many structural differences turn the kill switch on; 0: never."""
    differences: list[DifferenceReply]
    """The last ones, oldest first."""


def correctness_routes(room: Room) -> Sequence[Route]:
    routes = Routes()

    @routes.get("/admin/correctness", roles=READERS, summary="Replayed requests and their mismatches")
    async def correctness() -> CorrectnessReply:
        return _shown(room.replays, room.client.info.exactness)

    return routes.all


def _shown(replays: Replays, exactness: Literal["strict", "normal"]) -> CorrectnessReply:
    outcomes, dropped = replays.outcomes, replays.dropped
    return CorrectnessReply(
        enabled=replays.enabled,
        share=replays.settings.sample,
        exactness=exactness,
        match_rate=replays.match_rate,
        outcomes=OutcomesReply(
            match=outcomes["match"],
            near_tie=outcomes["near_tie"],
            structural=outcomes["structural"],
            failed=outcomes["failed"],
        ),
        num_queued=replays.num_queued,
        dropped=DroppedReply(
            queue_full=dropped["queue_full"], interrupted=dropped["interrupted"], closed=dropped["closed"]
        ),
        trip_after=replays.settings.trip_after,
        differences=[_difference(found) for found in replays.found],
    )


def _difference(found: Found) -> DifferenceReply:
    return DifferenceReply(
        at=found.at,
        request_id=found.request_id,
        route=found.route,
        rule=found.rule,
        policy_version=found.policy_version,
        arm=found.arm,
        mode=found.mode.mode,
        reason=found.mode.reason,
        sample=found.sample,
        position=found.position,
        kind=found.kind,
        margin=found.margin,
        tolerance=found.tolerance,
    )
