"""Where rollouts are kept, so that they survive restarts and replicas share them."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from prolepsis.control.rollouts.events import RolloutEvent
from prolepsis.control.rollouts.state import RolloutState
from prolepsis.control.verdicts.evidence import StageEvidence


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
