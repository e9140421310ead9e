"""Where rollouts are kept, so that they survive restarts and replicas share them."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol
from uuid import uuid4

from prolepsis.core.errors import StoreConflict, StoreUnavailable
from prolepsis.rollout import stored as rollouts
from prolepsis.rollout.machine import RolloutEvent, RolloutState
from prolepsis.rollout.stored import StoredState
from prolepsis.statistics.judge import StageEvidence
from prolepsis.store.database import Database


class RolloutJournal(Protocol):
    """Keeps states, events and evidence. Each call may block and may raise `OSError`; none is made on an event loop.

    What is raised loses nothing that was kept before: a promotion that cannot be kept does not happen, a rollback
    happens all the same and is kept later.
    """

    def states(self) -> Mapping[str, RolloutState]:
        """Return the newest state of every rollout by its id, those that other replicas kept too."""

    def swap(self, state: RolloutState, events: Sequence[RolloutEvent]) -> bool:
        """Keep a state together with the events that led to it, both or neither, where it follows the newest one.

        False where it does not (`RolloutState.follows`): another replica was first, and nothing is kept.
        """

    def events(self, rollout_id: str) -> Sequence[RolloutEvent]:
        """Return what happened to a rollout, oldest first."""

    def keep_evidence(self, evidence: Sequence[StageEvidence]) -> None:
        """Keep what this replica saw of some rollouts' stages, in place of what it kept of these rollouts before."""

    def other_evidence(self) -> Sequence[StageEvidence]:
        """Return what other replicas kept, and earlier lives of this one; of any rollout and any stage."""


class MemoryJournal:
    """A journal that ends with its process: for tests, and for trying things out."""

    def __init__(self) -> None:
        self._states: dict[str, RolloutState] = {}
        self._events: list[RolloutEvent] = []

    def states(self) -> Mapping[str, RolloutState]:
        return dict(self._states)

    def swap(self, state: RolloutState, events: Sequence[RolloutEvent]) -> bool:
        if not state.follows(self._states.get(state.rollout_id)):
            return False
        self._states[state.rollout_id] = state
        self._events += events
        return True

    def events(self, rollout_id: str) -> Sequence[RolloutEvent]:
        return [event for event in self._events if event.rollout_id == rollout_id]

    def keep_evidence(self, evidence: Sequence[StageEvidence]) -> None:
        """Keep nothing: nobody else reads it, and it ends with the process."""

    def other_evidence(self) -> Sequence[StageEvidence]:
        return ()


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
