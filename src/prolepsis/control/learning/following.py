"""What one server has in place of what was learnt: heads in slots, and the terms of rules. It follows the store."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import structlog

from prolepsis.control.drafts.heads import DraftHeads, HeadSwapBody
from prolepsis.control.learning.machine import InPlace, in_place, shadow_limit
from prolepsis.control.policy.learnt import with_champion, with_trial
from prolepsis.control.policy.model import Terms
from prolepsis.control.policy.runtime import Policies
from prolepsis.control.rollout.machine import RolloutState
from prolepsis.control.rollout.runtime import Rollouts
from prolepsis.control.store.lineage import LineageTable
from prolepsis.control.web.errors import RequestRefused
from prolepsis.core.audit_event import SERVER
from prolepsis.core.config import CANDIDATE_HEAD, DRAFT_HEAD, HEAD_PROPOSERS, LEARNT_HEAD, HeadProposerName
from prolepsis.core.engine_client import EngineClient
from prolepsis.core.errors import InvalidParameter, ModelError
from prolepsis.core.learning import HeadLineage, LearningRun

IDLE_S = 600.0  # so long a head waits for a moment without requests: a swap empties the cache of prefixes

log = structlog.get_logger(__name__)


class LearntHeads(Protocol):
    """The heads in the folder of this machine's user. Calls block, and raise what importing a head does."""

    def install(self, label: str, archive: bytes) -> None: ...

    def give_alias(self, label: str, alias: str) -> None:
        """Let an alias stand for a head, in place of the one that it stood for."""

    def remove(self, label: str, sha256: str) -> None:
        """Delete the head of that checksum, if it is there."""


@dataclass(frozen=True, slots=True)
class Stored:
    """What is in the store now."""

    run: LearningRun
    heads: Mapping[str, HeadLineage]  # by NAME@VERSION
    fitting: Mapping[str, HeadLineage]  # those of the target that is served here
    now: float
    is_ours: bool  # the run is for that target


@dataclass(frozen=True, slots=True)
class _TermsChange:
    """How the terms of a rule change for what it learnt."""

    champion: HeadProposerName  # the slot that its champion drafts in
    tried: str = ""  # the head that is compared with it; empty: none
    shadow_limit: float = 0.0

    def __call__(self, terms: Terms) -> Terms:
        if not self.tried:
            return with_champion(terms)
        return with_trial(terms, self.tried, self.champion, shadow_limit=self.shadow_limit)


class Following:
    def __init__(
        self,
        client: EngineClient,
        policies: Policies,
        rollouts: Rollouts,
        *,
        swaps: DraftHeads,
        lineage: LineageTable,
        folder: LearntHeads,
    ) -> None:
        self._client, self._policies, self._rollouts = client, policies, rollouts
        self._swaps, self._lineage, self._folder = swaps, lineage, folder
        self._changes: dict[str, _TermsChange] = {}  # by rule
        self._refused: dict[tuple[str, str], str] = {}  # why a head does not go into a slot
        self._removed: set[str] = set()

    def refusal(self, head: str) -> str:
        """Return why a head cannot be tried here, empty if it can."""
        return self._refused.get((CANDIDATE_HEAD, head), "")

    def trial(self, run: LearningRun) -> RolloutState | None:
        """Return the state of the rollout of a run's candidate, None where it is not compared here."""
        change = self._changes.get(run.rule)
        is_tried = change is not None and change.tried == run.head
        return self._rollouts.state(run.rule) if is_tried else None

    async def follow(self, stored: Stored) -> None:
        """Make this server what the store says; each part may be repeated."""
        wanted = in_place(stored.run, stored.fitting, self._policies.learning)
        for slot in HEAD_PROPOSERS:
            await self._put_out(slot, stored, wanted)
        for head, lineage in stored.heads.items():
            if lineage.retired and head not in self._removed:
                self._removed.add(head)
                await asyncio.to_thread(self._folder.remove, head, lineage.sha256)
        health = self._client.health()
        if not (health.num_running or health.num_waiting) or stored.now - stored.run.since > IDLE_S:
            await self._put_in(LEARNT_HEAD, wanted.champion, "champion")
            await self._put_in(CANDIDATE_HEAD, wanted.candidate, "candidate")
        self._set_terms(stored, wanted)

    async def _put_out(self, slot: HeadProposerName, stored: Stored, wanted: InPlace) -> None:
        """Take a head out of a slot if it may not draft, or was only there to be tried."""
        head = self._client.info.heads.get(slot, "")
        lineage = stored.heads.get(head)
        if lineage is None:
            return
        is_over = slot == LEARNT_HEAD and head != wanted.champion
        is_over |= slot == CANDIDATE_HEAD and head == stored.run.head != wanted.candidate
        if lineage.retired or is_over:
            reason = lineage.retired or "its trial is over, or another was promoted"
            body = HeadSwapBody(head="auto" if slot == DRAFT_HEAD else "none", proposer=slot, reason=reason)
            await self._swaps.swap(body, SERVER)

    async def _put_in(self, slot: HeadProposerName, head: str, alias: str) -> None:
        if not head or (slot, head) in self._refused or self._client.info.heads.get(slot) == head:
            return
        try:
            archive = await asyncio.to_thread(self._lineage.weights, head)
            if archive is None:
                raise InvalidParameter(f"the store has no weights of {head}", param="head")
            await asyncio.to_thread(self._folder.install, head, archive)
            await asyncio.to_thread(self._folder.give_alias, head, alias)
            await self._swaps.swap(HeadSwapBody(head=head, proposer=slot, reason=f"{alias}, learnt"), SERVER)
        except (RequestRefused, InvalidParameter, ModelError, ImportError) as error:
            self._refused[slot, head] = str(error)
            log.error("learnt_head_not_used", head=head, slot=slot, error=str(error))

    def _set_terms(self, stored: Stored, wanted: InPlace) -> None:
        """Change the terms of rules whose heads are in their slots; others have their own."""
        slots = self._client.info.heads
        champion = wanted.champion if slots.get(LEARNT_HEAD) == wanted.champion else ""
        changes: dict[str, _TermsChange] = {}
        if champion:
            changes[stored.fitting[champion].rule] = _TermsChange(LEARNT_HEAD)
        if wanted.candidate and slots.get(CANDIDATE_HEAD) == wanted.candidate:
            rule = stored.run.rule
            slot = LEARNT_HEAD if rule in changes else DRAFT_HEAD
            if self.trial(stored.run) is not None or self._is_settled(rule):
                limit = shadow_limit(stored.fitting[wanted.candidate])
                changes[rule] = _TermsChange(slot, wanted.candidate, limit)
        for rule in {*self._changes, *changes}:
            self._policies.learnt(rule, changes.get(rule))
        self._changes = changes

    def _is_settled(self, rule: str) -> bool:
        """Return whether a rule's own rollout, if it has one, has ended well: else a trial waits for it."""
        state = self._rollouts.state(rule)
        return state is None or state.phase == "on"
