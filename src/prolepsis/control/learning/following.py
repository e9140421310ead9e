"""What one server has in place of what was learnt: heads in slots, and the terms of rules. It follows the store."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

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
from prolepsis.core.errors import InvalidParameter, ModelError, ModelLoadError
from prolepsis.core.extras import named
from prolepsis.core.learning import HeadLineage, LearningRun

IDLE_S = 600.0  # so long a head waits for a moment without requests: a swap empties the cache of prefixes
_HEADS = "engine.models.heads"
_ALIASES: Mapping[HeadProposerName, str] = {LEARNT_HEAD: "champion", CANDIDATE_HEAD: "candidate"}

log = structlog.get_logger(__name__)


class HeadFolder:
    """The heads of this machine's user, beside the models in `root`; None: in the cache directory.

    Calls block, and raise what importing a head does.
    """

    def __init__(self, root: Path | None) -> None:
        self._root = root
        self._aliases = named(f"{_HEADS}.aliases:HeadAliases")(root)

    def install(self, label: str, archive: bytes, alias: str) -> None:
        """Keep a head, and let an alias stand for it in place of the one that it stood for."""
        named(f"{_HEADS}.exchange:import_archive")(archive, label, self._root)
        name, _, version = label.partition("@")
        self._aliases.set(name, alias, int(version))

    def remove(self, label: str, sha256: str) -> None:
        """Delete a head and its aliases, if it is there; one of other weights, or of the package, stays."""
        with suppress(ModelLoadError):  # there is none
            entry = named(f"{_HEADS}.registry:find_head")(label, self._root)
            if entry.provenance.sha256 == sha256:
                for alias in self._aliases.of(entry.name, entry.version):
                    self._aliases.set(entry.name, alias, None)
                named(f"{_HEADS}.exchange:remove_head")(label, self._root)


@dataclass(frozen=True, slots=True)
class Stored:
    """What is in the store now."""

    run: LearningRun
    heads: Mapping[str, HeadLineage]  # by NAME@VERSION
    fitting: Mapping[str, HeadLineage]  # those of the target that is served here
    now: float


@dataclass
class Following:
    client: EngineClient
    policies: Policies
    rollouts: Rollouts
    swaps: DraftHeads
    lineage: LineageTable
    folder: HeadFolder
    _changed: set[str] = field(default_factory=set)  # rules whose terms are not their own
    _tried: str = ""  # the head that is compared with the champion
    refused: dict[tuple[str, str], str] = field(default_factory=dict)  # by slot and head, why it does not go in
    _removed: set[str] = field(default_factory=set)

    def trial(self, run: LearningRun) -> RolloutState | None:
        """Return the state of the rollout of a run's candidate, None where it is not compared here."""
        return self.rollouts.state(run.rule) if run.head and run.head == self._tried else None

    async def follow(self, stored: Stored) -> None:
        """Make this server what the store says; each part may be repeated."""
        wanted = in_place(stored.run, stored.fitting, self.policies.learning)
        for slot in HEAD_PROPOSERS:
            await self._put_out(slot, stored, wanted)
        for head, lineage in stored.heads.items():
            if lineage.retired and head not in self._removed:
                self._removed.add(head)
                await asyncio.to_thread(self.folder.remove, head, lineage.sha256)
        health = self.client.health()
        if not (health.num_running or health.num_waiting) or stored.now - stored.run.since > IDLE_S:
            await self._put_in(LEARNT_HEAD, wanted.champion)
            await self._put_in(CANDIDATE_HEAD, wanted.candidate)
        self._set_terms(stored, wanted)

    async def _put_out(self, slot: HeadProposerName, stored: Stored, wanted: InPlace) -> None:
        """Take a head out of a slot if it may not draft, or was only there to be tried."""
        head = self.client.info.heads.get(slot, "")
        lineage = stored.heads.get(head)
        if lineage is None:
            return
        is_over = slot == LEARNT_HEAD and head != wanted.champion
        is_over |= slot == CANDIDATE_HEAD and head == stored.run.head != wanted.candidate
        if lineage.retired or is_over:
            reason = lineage.retired or "its trial is over, or another was promoted"
            body = HeadSwapBody(head="auto" if slot == DRAFT_HEAD else "none", proposer=slot, reason=reason)
            await self.swaps.swap(body, SERVER)

    async def _put_in(self, slot: HeadProposerName, head: str) -> None:
        if not head or (slot, head) in self.refused or self.client.info.heads.get(slot) == head:
            return
        try:
            archive = await asyncio.to_thread(self.lineage.weights, head)
            if archive is None:
                raise InvalidParameter(f"the store has no weights of {head}", param="head")
            alias = _ALIASES[slot]
            await asyncio.to_thread(self.folder.install, head, archive, alias)
            await self.swaps.swap(HeadSwapBody(head=head, proposer=slot, reason=f"{alias}, learnt"), SERVER)
        except (RequestRefused, InvalidParameter, ModelError, ImportError) as error:
            self.refused[slot, head] = str(error)
            log.error("learnt_head_not_used", head=head, slot=slot, error=str(error))

    def _set_terms(self, stored: Stored, wanted: InPlace) -> None:
        """Change the terms of rules whose heads are in their slots; others have their own."""
        slots, rule, changes = self.client.info.heads, stored.run.rule, dict[str, Callable[[Terms], Terms]]()
        if wanted.champion and slots.get(LEARNT_HEAD) == wanted.champion:
            changes[stored.fitting[wanted.champion].rule] = with_champion
        own = self.rollouts.state(rule)  # a trial waits until it has ended well
        is_free = self._tried == wanted.candidate or own is None or own.phase == "on"
        self._tried = wanted.candidate if slots.get(CANDIDATE_HEAD) == wanted.candidate and is_free else ""
        if self._tried:
            champion: HeadProposerName = LEARNT_HEAD if rule in changes else DRAFT_HEAD
            limit = shadow_limit(stored.fitting[self._tried])
            changes[rule] = partial(with_trial, head=self._tried, champion=champion, shadow_limit=limit)
        for each in {*self._changed, *changes}:
            self.policies.learnt(each, changes.get(each))
        self._changed = {*changes}
