"""Exchanges states and evidence of rollouts with other replicas through the store, and rollbacks that wait for it."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import structlog

from prolepsis.control.rollout.live import LiveRollout
from prolepsis.control.rollout.machine import JUDGED, RolloutEvent, RolloutState
from prolepsis.control.rollout.store import RolloutStore
from prolepsis.control.rollout.units import UnitKey
from prolepsis.core.errors import StoreUnavailable

KEEP_EVERY_S = 10.0  # least time between two writes of evidence, for other replicas and the next start

log = structlog.get_logger(__name__)


class ReplicaExchange:
    """Holds what was read last. Belongs to one event loop; blocking work runs in threads."""

    def __init__(self, store: RolloutStore, clock: Callable[[], float]) -> None:
        """A store that cannot be read now is read by the next `read_states`."""
        self.states: dict[str, RolloutState] = {}  # as stored, by rollout
        self._store = store
        self._clock = clock
        self._pending: dict[str, Sequence[RolloutEvent]] = {}
        """Events of rollbacks that took effect and could not be stored, by rollout."""
        self._kept_at = clock()
        try:
            self.states = dict(store.states())
        except StoreUnavailable as error:
            log.error("rollouts_not_read", error=str(error))

    def newer(self, state: RolloutState) -> RolloutState | None:
        """Return a later state that another replica stored, unless a rollback of ours is to be stored over it."""
        stored = self.states.get(state.rollout_id)
        is_newer = stored is not None and stored.version > state.version
        return stored if is_newer and state.rollout_id not in self._pending else None

    async def read_states(self, lives: Iterable[LiveRollout]) -> None:
        """Read the states of all replicas, and store pending rollbacks over them."""
        self.states.update(await asyncio.to_thread(self._store.states))
        for live in lives:
            rollout_id = live.target.rollout_id
            if rollout_id in self._pending:
                stored = self.states.get(rollout_id)
                state = replace(live.state, version=1 + (stored.version if stored else 0))
                if await self.swap(state, self._pending[rollout_id]):
                    del self._pending[rollout_id]
                    live.take(state)

    async def swap(self, state: RolloutState, events: Sequence[RolloutEvent]) -> bool:
        """Store a state with its events; return False if another replica was first."""
        if not await asyncio.to_thread(self._store.swap, state, events):
            return False
        self.states[state.rollout_id] = state
        return True

    def store_later(self, rollout_id: str, events: Sequence[RolloutEvent]) -> None:
        """Store a rollback, which takes effect now, at a later `read_states`."""
        self._pending[rollout_id] = events

    async def evidence(self, lives: Sequence[LiveRollout]) -> None:
        """Give each rollout the evidence of other replicas; store ours if it is time."""
        others = await asyncio.to_thread(self._store.other_evidence)
        for live in lives:
            live.others = tuple(evidence for evidence in others if evidence.rollout_id == live.target.rollout_id)
        if self._clock() - self._kept_at >= KEEP_EVERY_S:
            self._kept_at = self._clock()
            await self.keep_evidence(lives)

    async def keep_evidence(self, lives: Iterable[LiveRollout]) -> None:
        """Store the evidence of stages that continue."""
        seen = [live.evidence for live in lives if live.state.phase in JUDGED]
        seen = [evidence for evidence in seen if evidence.num_canary + evidence.num_control]
        if seen:
            await asyncio.to_thread(self._store.keep_evidence, seen)

    async def claim(self, keys: Sequence[UnitKey], again_before: float, now: float) -> frozenset[UnitKey]:
        """Return the units of a stage that are to be counted here; raises `StoreUnavailable`."""
        return await asyncio.to_thread(self._store.claim, keys, again_before, now)

    async def events(self, rollout_id: str) -> Sequence[RolloutEvent]:
        """Return the events of a rollout, oldest first; raises `StoreUnavailable`."""
        return [*await asyncio.to_thread(self._store.events, rollout_id), *self._pending.get(rollout_id, ())]
