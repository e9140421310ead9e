"""Rollouts in the store: states that are exchanged by compare-and-swap, their events, and the evidence of replicas."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Annotated
from uuid import uuid4

from pydantic import Field, TypeAdapter
from sqlalchemy import select

from prolepsis.control.rollout.machine import RolloutEvent, RolloutState
from prolepsis.control.rollout.units import MAX_COUNTED, UnitKey
from prolepsis.control.statistics.judge import StageEvidence
from prolepsis.control.statistics.window import MINUTE_S, WINDOW_MINUTES, WindowEvidence
from prolepsis.control.store import documents as of
from prolepsis.control.store.database import Database
from prolepsis.control.store.documents import Documents, StoredDocument

Evidence = StageEvidence | WindowEvidence
_EVIDENCE: TypeAdapter[Evidence] = TypeAdapter(
    Annotated[WindowEvidence | StageEvidence, Field(union_mode="left_to_right")]  # only the first has spans
)
_STATES = Documents("rollout", lru_cache(RolloutState.from_json), RolloutState.to_json)
"""By rollout. Most states do not change from one look to the next, and reading one takes long."""
_EVENTS = Documents("rollout_event", RolloutEvent.from_json, RolloutEvent.to_json)
"""By rollout, version and number."""
_BY_REPLICA = Documents("evidence", _EVIDENCE.validate_json, lambda evidence: evidence.to_json())
"""Of a stage, by rollout and replica (`by`)."""
_COUNTED = Documents("unit", str, str)
"""Units that some replica has counted for a stage, by the parts of `UnitKey`; no more than the key is stored."""


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

    def states(self) -> Mapping[str, RolloutState]:
        """Return the newest state of every rollout by its id, including rollouts that other replicas kept."""
        with self._database.read() as connection:
            return _STATES.by_key(connection)

    def swap(self, state: RolloutState, events: Sequence[RolloutEvent]) -> bool:
        """Keep a state with the events that led to it, both or neither, if it follows the newest one by one version.

        The first state of a rollout may have any version. Returns False if it does not follow: another replica was
        first, and nothing is kept.
        """
        now, rollout = self._clock(), state.rollout_id
        with self._database.write() as connection:
            before = _STATES.get(connection, rollout)
            if not _STATES.swap(connection, StoredDocument(rollout, state, now, state.version)):
                return False
            numbered = [(f"{rollout} {event.version:09} {i:03}", event) for i, event in enumerate(events)]
            _EVENTS.put(connection, [StoredDocument(key, event, now) for key, event in numbered])
            if before is not None and state.has_ended(before.value):
                for stored in (_BY_REPLICA, _COUNTED):
                    stored.remove(connection, of.begins(f"{rollout} "))
        return True

    def events(self, rollout_id: str) -> Sequence[RolloutEvent]:
        """Return what happened to a rollout, oldest first."""
        with self._database.read() as connection:
            return [document.value for document in _EVENTS.list(connection, of.begins(f"{rollout_id} "))]

    def keep_evidence(self, evidence: Sequence[Evidence]) -> None:
        """Keep this replica's evidence of some rollouts' stages, in place of its earlier evidence of these rollouts.

        Evidence of moving windows that replicas kept for the last time before the window is dropped.
        """
        now = self._clock()
        ours = [StoredDocument(f"{item.rollout_id} {self._replica}", item, now, by=self._replica) for item in evidence]
        with self._database.write() as connection:
            for part in evidence:
                if isinstance(part, WindowEvidence):
                    is_old = of.at < now - MINUTE_S * WINDOW_MINUTES
                    _BY_REPLICA.remove(connection, of.begins(f"{part.rollout_id} "), is_old)
            _BY_REPLICA.put(connection, ours)

    def claim(self, keys: Sequence[UnitKey], again_before: float, now: float) -> frozenset[UnitKey]:
        """Mark units of one stage as counted; return the units that no replica has counted since `again_before`."""
        by_name = {" ".join(map(str, key)): key for key in keys}
        in_stage = of.begins(" ".join(map(str, keys[0][:3])) + " ")
        with self._database.write() as connection:
            if math.isfinite(again_before):
                _COUNTED.remove(connection, in_stage, of.at < again_before)
            fresh = _COUNTED.add(connection, [StoredDocument(name, "", now) for name in by_name])
            if not self._database.is_kept and _COUNTED.count(connection) > MAX_COUNTED:  # it is memory
                oldest = select(of.at).where(_COUNTED.are()).order_by(of.at.desc()).offset(MAX_COUNTED).limit(1)
                _COUNTED.remove(connection, of.at <= oldest.scalar_subquery())  # it may count again
        return frozenset(by_name[name] for name in fresh)

    def other_evidence(self) -> Sequence[Evidence]:
        """Return the evidence of other replicas, and of earlier starts of this one; of any rollout and any stage."""
        with self._database.read() as connection:
            return [document.value for document in _BY_REPLICA.list(connection, of.by != self._replica)]
