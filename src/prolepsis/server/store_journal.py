"""Rollouts in the store: shared by all replicas that use one database."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from uuid import uuid4

from prolepsis.control.rollouts.events import RolloutEvent
from prolepsis.control.rollouts.state import RolloutState
from prolepsis.control.verdicts.evidence import StageEvidence
from prolepsis.core.errors import StoreConflict, StoreUnavailable
from prolepsis.store import rollouts
from prolepsis.store.database import Database
from prolepsis.store.rollouts import StoredState


class StoreJournal:
    """A `RolloutJournal` over the tables of rollouts; a database that fails is an `OSError`, as the journal promises.

    Evidence is a row a replica and rollout. The change that ends a stage drops the rows of all replicas with it; what a
    replica keeps of that stage afterwards is of no stage that goes on, and is dropped with the next.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._replica = uuid4().hex
        self._read: dict[str, tuple[str, RolloutState]] = {}
        """The last text of each state with what it says: most do not change from one look to the next."""

    def states(self) -> Mapping[str, RolloutState]:
        with _failures(), self._database.read() as connection:
            stored = rollouts.load_all(connection)
        self._read = {one.rollout_id: (one.state, self._said(one)) for one in stored}
        return {rollout_id: state for rollout_id, (_, state) in self._read.items()}

    def swap(self, state: RolloutState, events: Sequence[RolloutEvent]) -> bool:
        after = StoredState(state.rollout_id, state.version, state.to_json().decode())
        told = [event.to_json().decode() for event in events]
        try:
            with _failures(), self._database.write() as connection:
                before = rollouts.load(connection, state.rollout_id)
                rollouts.swap(connection, after, told)
                if before is not None and _ends_stage(RolloutState.from_json(before.state), state):
                    rollouts.drop_evidence(connection, state.rollout_id)
        except StoreConflict:
            return False
        return True

    def events(self, rollout_id: str) -> Sequence[RolloutEvent]:
        with _failures(), self._database.read() as connection:
            return [RolloutEvent.from_json(text) for text in rollouts.events(connection, rollout_id)]

    def keep_evidence(self, evidence: Sequence[StageEvidence]) -> None:
        texts = {one.rollout_id: one.to_json().decode() for one in evidence}
        with _failures(), self._database.write() as connection:
            rollouts.keep_evidence(connection, self._replica, texts)

    def other_evidence(self) -> Sequence[StageEvidence]:
        with _failures(), self._database.read() as connection:
            return [StageEvidence.from_json(text) for text in rollouts.evidence_beside(connection, self._replica)]

    def _said(self, stored: StoredState) -> RolloutState:
        text, state = self._read.get(stored.rollout_id, ("", None))
        return state if state is not None and text == stored.state else RolloutState.from_json(stored.state)


def _ends_stage(before: RolloutState, after: RolloutState) -> bool:
    return after.has_ended(before.run, before.stage)


@contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except StoreUnavailable as error:
        raise OSError(str(error)) from error
