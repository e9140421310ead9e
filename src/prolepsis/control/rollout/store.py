"""Rollouts in the store: states that are exchanged by compare-and-swap, their events, and the evidence of replicas."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated
from uuid import uuid4

from pydantic import Field, TypeAdapter
from sqlalchemy import Connection, delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from prolepsis.control.rollout.machine import RolloutEvent, RolloutState
from prolepsis.control.rollout.units import MAX_COUNTED, UnitKey
from prolepsis.control.statistics.judge import StageEvidence
from prolepsis.control.statistics.window import MINUTE_S, WINDOW_MINUTES, WindowEvidence
from prolepsis.control.store.database import Database
from prolepsis.control.store.tables import rollout_events, rollout_evidence, rollout_states, rollout_units
from prolepsis.core.errors import StoreConflict

_CLAIMED_AT_ONCE = 500


class RolloutStore:
    """Keeps states, events and evidence for all replicas that use one database, and for their next start.

    Each call waits for the database and may raise `StoreUnavailable`; none belongs on an event loop. Evidence is a row
    for each replica and rollout. The change that ends a stage drops the rows of all replicas with it; evidence of that
    stage that a replica keeps afterwards belongs to no stage that continues, and is dropped with the next.
    """

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        """`clock`: Unix time."""
        self._database = database
        self._clock = clock
        self._replica = uuid4().hex
        self._read: dict[str, tuple[str, RolloutState]] = {}
        """The last text of each state with its value: most do not change from one look to the next."""

    def states(self) -> Mapping[str, RolloutState]:
        """Return the newest state of every rollout by its id, including rollouts that other replicas kept."""
        of = rollout_states.c
        with self._database.read() as connection:
            rows = connection.execute(select(of.rollout_id, of.state)).all()
        self._read = {rollout_id: (text, self._parsed(rollout_id, text)) for rollout_id, text in rows}
        return {rollout_id: state for rollout_id, (_, state) in self._read.items()}

    def swap(self, state: RolloutState, events: Sequence[RolloutEvent]) -> bool:
        """Keep a state with the events that led to it, both or neither, if it follows the newest one by one version.

        The first state of a rollout may have any version. Returns False if it does not follow: another replica was
        first, and nothing is kept.
        """
        try:
            with self._database.write() as connection:
                before = _load(connection, state.rollout_id)
                _swap(connection, state, self._clock())
                _add_events(connection, events, self._clock())
                if before is not None and state.has_ended(before):
                    connection.execute(delete(rollout_evidence).where(_evidence.rollout_id == state.rollout_id))
                    connection.execute(delete(rollout_units).where(rollout_units.c.rollout_id == state.rollout_id))
        except StoreConflict:
            return False
        return True

    def events(self, rollout_id: str) -> Sequence[RolloutEvent]:
        """Return what happened to a rollout, oldest first."""
        of = rollout_events.c
        query = select(of.event).where(of.rollout_id == rollout_id).order_by(of.version, of.number)
        with self._database.read() as connection:
            return [RolloutEvent.from_json(text) for text in connection.scalars(query)]

    def keep_evidence(self, evidence: Sequence[StageEvidence | WindowEvidence]) -> None:
        """Keep this replica's evidence of some rollouts' stages, in place of its earlier evidence of these rollouts.

        Evidence of moving windows that replicas kept for the last time before the window is dropped.
        """
        now = self._clock()
        rows = [
            {
                "rollout_id": one.rollout_id,
                "replica": self._replica,
                "evidence": one.to_json(),
                "kept_at": now,
            }
            for one in evidence
        ]
        ours = (_evidence.replica == self._replica) & _evidence.rollout_id.in_([one.rollout_id for one in evidence])
        windows = [one.rollout_id for one in evidence if isinstance(one, WindowEvidence)]
        old = _evidence.rollout_id.in_(windows) & (_evidence.kept_at < now - MINUTE_S * WINDOW_MINUTES)
        with self._database.write() as connection:
            connection.execute(delete(rollout_evidence).where(ours | old))
            if rows:
                connection.execute(insert(rollout_evidence), rows)

    def claim(self, keys: Sequence[UnitKey], again_before: float, now: float) -> frozenset[UnitKey]:
        """Mark units of one stage as counted; return the units that no replica has counted since `again_before`."""
        rollout_id, run, stage = keys[0][:3]
        of = rollout_units.c
        in_stage = (of.rollout_id == rollout_id) & (of.run == run) & (of.stage == stage)
        with self._database.write() as connection:
            if math.isfinite(again_before):
                connection.execute(delete(rollout_units).where(in_stage & (of.counted_at < again_before)))
            counted: set[tuple[str, bool]] = set()
            for start in range(0, len(keys), _CLAIMED_AT_ONCE):
                units = [key.unit for key in keys[start : start + _CLAIMED_AT_ONCE]]
                known = select(of.unit, of.late).where(in_stage & of.unit.in_(units))
                counted.update((unit, late) for unit, late in connection.execute(known))
            fresh = [key for key in keys if (key.unit, key.late) not in counted]
            if fresh:
                connection.execute(insert(rollout_units), [{**key._asdict(), "counted_at": now} for key in fresh])
            if not self._database.is_kept:  # it is memory, and long stages count many units
                _forget_oldest(connection, MAX_COUNTED)
        return frozenset(fresh)

    def other_evidence(self) -> Sequence[StageEvidence | WindowEvidence]:
        """Return the evidence of other replicas, and of earlier starts of this one; of any rollout and any stage."""
        query = select(_evidence.evidence).where(_evidence.replica != self._replica)
        with self._database.read() as connection:
            texts = connection.scalars(query.order_by(_evidence.rollout_id, _evidence.replica))
            return [_EVIDENCE.validate_json(text) for text in texts]

    def _parsed(self, rollout_id: str, text: str) -> RolloutState:
        before, state = self._read.get(rollout_id, ("", None))
        return state if state is not None and text == before else RolloutState.from_json(text)


_evidence = rollout_evidence.c
_EVIDENCE: TypeAdapter[StageEvidence | WindowEvidence] = TypeAdapter(
    Annotated[WindowEvidence | StageEvidence, Field(union_mode="left_to_right")]  # only the first has spans
)


def _forget_oldest(connection: Connection, most: int) -> None:
    """Leave at most `most` units; a forgotten one may count again."""
    of = rollout_units.c
    if (connection.scalar(select(func.count()).select_from(rollout_units)) or 0) > most:
        oldest = select(of.counted_at).order_by(of.counted_at.desc()).offset(most).limit(1).scalar_subquery()
        connection.execute(delete(rollout_units).where(of.counted_at <= oldest))


def _load(connection: Connection, rollout_id: str) -> RolloutState | None:
    text = connection.scalar(select(rollout_states.c.state).where(rollout_states.c.rollout_id == rollout_id))
    return None if text is None else RolloutState.from_json(text)


def _swap(connection: Connection, after: RolloutState, now: float) -> None:
    """Store a state over the one before it; raises `StoreConflict` if another one is stored."""
    of = rollout_states.c
    values = {"version": after.version, "state": after.to_json(), "changed_at": now}
    before = (of.rollout_id == after.rollout_id) & (of.version == after.version - 1)
    if connection.execute(update(rollout_states).where(before).values(values)).rowcount:
        return
    try:
        with connection.begin_nested():
            connection.execute(insert(rollout_states), [{"rollout_id": after.rollout_id, **values}])
    except IntegrityError:
        message = f"version {after.version} of rollout {after.rollout_id} does not follow the stored one"
        raise StoreConflict(message) from None


def _add_events(connection: Connection, events: Sequence[RolloutEvent], now: float) -> None:
    rows = [
        {
            "rollout_id": event.rollout_id,
            "version": event.version,
            "number": i,
            "event": event.to_json(),
            "stored_at": now,
        }
        for i, event in enumerate(events)
    ]
    if rows:
        connection.execute(insert(rollout_events), rows)
