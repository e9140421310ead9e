"""/admin/heads: the draft heads that are installed and those in use, and swaps while requests are served.

A head that is swapped in is tried at once on given prompts: where drafts do not pay, no traffic would show it damaged.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated

import structlog
from pydantic import Field

from prolepsis.control.drafts.commands import HEADS
from prolepsis.control.drafts.trial import BRIEFLY, IN_THE_BACKGROUND, HeadTrial, Phases, Prompts, try_head
from prolepsis.control.web.body_reader import read_body
from prolepsis.control.web.caller import SignedIn
from prolepsis.control.web.context import Context
from prolepsis.control.web.errors import RequestRefused, describe_error
from prolepsis.control.web.feature import Feature
from prolepsis.control.web.fields import Body
from prolepsis.control.web.routes import OPERATORS, READERS, Routes
from prolepsis.core.audit_event import SERVER, AuditEvent, Emit, discard
from prolepsis.core.config import DRAFT_HEAD, HeadProposerName
from prolepsis.core.engine_client import EngineClient, HeadSwapped, InstalledHead
from prolepsis.core.errors import ConfigError, InvalidParameter, MemoryPlanError, ModelError

REPLY_S = 5.0
"""So long a swap waits for what its trial shows."""
_WORDS = ("auto", "none")

log = structlog.get_logger(__name__)


class HeadSwapBody(Body):
    head: Annotated[str, Field(min_length=1, max_length=128)]
    """NAME (its newest version), NAME@VERSION, NAME@ALIAS, "auto" (the best that fits) or "none"."""
    proposer: HeadProposerName = DRAFT_HEAD
    """candidate_head, learnt_head: further heads, which draft only where a rule or an operator names them."""
    reason: Annotated[str, Field(max_length=500)] = ""


@dataclass(slots=True)
class _Standing:
    """What is known of a head."""

    trial: HeadTrial | None = None  # the last one that it drafted in
    tried: str = ""  # in words, once it was swapped in
    worse: str = ""  # a warning, if it brings much less


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownHead(InstalledHead):
    slot: str  # the proposer that drafts with it now; empty: none
    tried: str  # what it brought on the shipped prompts since it was swapped in; empty: it was not


@dataclass(frozen=True, slots=True)
class HeadsReply:
    draft_head: str | None  # NAME@VERSION of the head in use
    draft_head_reason: str  # how it was found, or why there is none
    candidate_head: str | None
    learnt_head: str | None
    heads: list[ShownHead]
    warnings: list[str]  # heads in use that bring much less than those before


@dataclass(frozen=True, slots=True)
class HeadSwapReply(HeadSwapped):
    tried: str  # what the head brought on the shipped prompts; empty without a head
    warnings: list[str]


class DraftHeads(Feature):
    """Shows, swaps and tries the heads of one engine."""

    name = "heads"
    period_s = 30.0

    def __init__(self, client: EngineClient, prompts: Callable[[], Prompts], *, emit: Emit = discard) -> None:
        """`prompts`: token ids of those on which heads are tried."""
        routes = Routes()

        routes.get(HEADS.path, roles=READERS, summary=HEADS.help, errors=(503,))(self.shown)

        @routes.put(HEADS.path, roles=OPERATORS, summary="Draft with another head", errors=(404, 409, 503))
        async def swap(body: Annotated[HeadSwapBody, read_body(HeadSwapBody)], caller: SignedIn) -> HeadSwapReply:
            return await self.swap(body, caller.actor)

        self.routes = routes.all
        self._client = client
        self._prompts = prompts
        self._emit = emit
        self._standings = defaultdict[str, _Standing](_Standing)
        self._untried: dict[HeadProposerName, tuple[str, str | None]] = {}
        """Heads that were swapped in and have not drafted in a trial, each with the one before."""
        self._tasks: dict[HeadProposerName, asyncio.Task[None]] = {}

    async def tick(self) -> None:
        """Try heads again that could not draft, as speculation was stopped."""
        for proposer in self._untried:
            if self._tasks[proposer].done():
                self._tasks[proposer] = asyncio.create_task(self._try(proposer))

    async def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def shown(self) -> HeadsReply:
        """Return the heads by name and version."""
        installed, info = await self._installed(), self._client.info
        slots = {head: slot for slot, head in info.heads.items()}
        heads = [
            ShownHead(**asdict(head), slot=slots.get(head.label, ""), tried=self._standings[head.label].tried)
            for head in installed
        ]
        warnings = [text for head in info.heads.values() if (text := self._standings[head].worse)]
        slotted = info.draft_head, info.draft_head_reason, info.candidate_head, info.learnt_head
        return HeadsReply(*slotted, heads, warnings)

    async def swap(self, body: HeadSwapBody, by: str) -> HeadSwapReply:
        """Put a head in, between two steps, and try it; say what it brings if that is quick.

        Raises `RequestRefused` (404, 409) and leaves the old one in place.
        """
        heads, proposer = await self._installed(), body.proposer
        known = {*_WORDS, *(text for head in heads for text in head.names)}
        if body.head not in known:
            message = f"head is {body.head!r}; installed: {', '.join(head.label for head in heads) or 'none'}"
            raise RequestRefused(message, code="unknown_head", param="head", status=404)
        if body.head != "none":
            await self._try_before(proposer)
        try:
            swapped = await self._client.swap_head(body.head, proposer)
        except (ModelError, MemoryPlanError, InvalidParameter) as error:
            raise RequestRefused(str(error), code="head_not_usable", param="head", status=409) from None
        after = {"head": swapped.current, "asked": body.head, "reason": body.reason}
        before = {"head": swapped.previous}
        self._emit(AuditEvent(actor=by, action="head.swapped", subject=proposer, before=before, after=after))
        self._untried.pop(proposer, None)
        if (task := self._tasks.get(proposer)) is not None:
            task.cancel()
        if (head := swapped.current) is None:
            return HeadSwapReply(**asdict(swapped), tried="", warnings=[])
        other = swapped.previous if proposer == DRAFT_HEAD else self._client.info.draft_head
        self._untried[proposer] = head, other
        self._tasks[proposer] = asyncio.create_task(self._try(proposer))
        await asyncio.wait([self._tasks[proposer]], timeout=REPLY_S)
        found = self._standings[head]
        return HeadSwapReply(**asdict(swapped), tried=found.tried, warnings=[found.worse] if found.worse else [])

    async def _try(self, proposer: HeadProposerName) -> None:
        head, before = self._untried[proposer]
        found = self._standings[head]
        found.tried, found.worse = "it is being tried on the shipped prompts", ""
        if proposer != DRAFT_HEAD:
            await self._try_before(DRAFT_HEAD)
        known, trial = self._standings[before or ""].trial, await self._trial(proposer, head, IN_THE_BACKGROUND)
        if trial is None or not trial.num_drafts:
            found.tried = trial.describe() if trial else "the trial failed; the log says why"
            return
        del self._untried[proposer]
        found.tried = trial.describe() + (f"; {before}: {known.describe()}" if known else "")
        if is_worse := trial.is_much_worse(known):
            text = f"{proposer} drafts with {head}, which brings next to nothing or much less than the one before"
            found.worse = f"{text}: {found.tried}"
        after = {"head": head, **asdict(trial), "is_much_worse": is_worse}
        earlier = {"head": before, **asdict(known)} if known else None
        self._emit(AuditEvent(actor=SERVER, action="head.tried", subject=proposer, before=earlier, after=after))

    async def _try_before(self, proposer: HeadProposerName) -> None:
        """Try the head in use for a moment, unless what it brings is known."""
        head = self._client.info.heads.get(proposer)
        if head is not None and self._standings[head].trial is None:
            await self._trial(proposer, head, BRIEFLY)

    async def _trial(self, proposer: HeadProposerName, head: str, phases: Phases) -> HeadTrial | None:
        try:
            trial = await try_head(self._client, self._prompts(), proposer, phases)
        except Exception as error:  # contained: a head that cannot be tried drafts all the same
            log.warning("head_not_tried", proposer=proposer, error=str(describe_error(error)))
            return None
        if trial.num_drafts:
            self._standings[head].trial = trial
        return trial

    async def _installed(self) -> Sequence[InstalledHead]:
        """Return the heads; raises `RequestRefused` (503) if a file about them is damaged: no fault of the caller."""
        try:
            return await self._client.heads()
        except ConfigError as error:
            raise RequestRefused(str(error), code="heads_unreadable", status=503) from None


def feature(context: Context, prompts: Callable[[], Prompts]) -> DraftHeads:
    """Return the heads; `prompts` as `DraftHeads`."""
    return DraftHeads(context.client, prompts, emit=context.emit)
