"""/admin/heads: the draft heads that are installed and those in use, and swaps while requests are served.

A head that is swapped in is tried at once on given prompts: where drafts do not pay, no traffic would show it damaged.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated

import structlog
from pydantic import Field

from prolepsis.control.drafts.commands import HEADS
from prolepsis.control.drafts.trial import BRIEFLY, IN_THE_BACKGROUND, HeadTrial, Phases, try_head
from prolepsis.control.web.body_reader import read_body
from prolepsis.control.web.caller import SignedIn
from prolepsis.control.web.context import Context
from prolepsis.control.web.errors import RequestRefused, describe_error
from prolepsis.control.web.feature import Feature
from prolepsis.control.web.fields import Body
from prolepsis.control.web.routes import OPERATORS, READERS, Route, Routes
from prolepsis.core.audit_event import SERVER, AuditEvent, Emit, discard
from prolepsis.core.config import CANDIDATE_HEAD, DRAFT_HEAD, HeadProposerName
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
    """candidate_head: a second head, which drafts only where a rule or an operator names it."""
    reason: Annotated[str, Field(max_length=500)] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownHead(InstalledHead):
    tried: str  # what it brought on the shipped prompts since it was swapped in; empty: it was not


@dataclass(frozen=True, slots=True)
class HeadsReply:
    draft_head: str | None  # NAME@VERSION of the head in use
    draft_head_reason: str  # how it was found, or why there is none
    candidate_head: str | None
    heads: list[ShownHead]
    warnings: list[str]  # heads in use that bring much less than those before


@dataclass(frozen=True, slots=True)
class HeadSwapReply(HeadSwapped):
    tried: str  # what the head brought on the shipped prompts; empty without a head
    warnings: list[str]


@dataclass(frozen=True, slots=True)
class _Tried:
    """The trial of a head that was swapped in."""

    text: str
    warning: str = ""


_UNTRIED, _BEGUN = _Tried(""), _Tried("it is being tried on the shipped prompts")


class DraftHeads(Feature):
    """Shows, swaps and tries the heads of one engine."""

    name = "heads"
    period_s = 30.0

    def __init__(
        self, client: EngineClient, prompts: Callable[[], Sequence[Sequence[int]]], *, emit: Emit = discard
    ) -> None:
        """`prompts`: token ids of those on which heads are tried."""
        self.routes = _routes(self)
        self._client = client
        self._prompts = prompts
        self._emit = emit
        self._trials: dict[str, HeadTrial] = {}  # the last one of each head that drafted in it
        self._tried: dict[str, _Tried] = {}
        self._trying: dict[HeadProposerName, asyncio.Task[None]] = {}
        self._untried: dict[HeadProposerName, tuple[str, str | None]] = {}
        """Heads that were swapped in and have not drafted in a trial, with the one before."""

    async def tick(self) -> None:
        """Try heads again that might not draft before, as speculation was stopped."""
        for proposer in list(self._untried):
            if self._trying[proposer].done():
                self._begin(proposer)

    async def close(self) -> None:
        for task in self._trying.values():
            task.cancel()
        await asyncio.gather(*self._trying.values(), return_exceptions=True)

    async def shown(self) -> HeadsReply:
        """Return the heads by name and version."""
        installed, info = await self._installed(), self._client.info
        heads = [ShownHead(**asdict(head), tried=self._tried.get(head.label, _UNTRIED).text) for head in installed]
        return HeadsReply(
            info.draft_head, info.draft_head_reason, info.candidate_head, heads, self._warnings(info.heads.values())
        )

    async def swap(self, body: HeadSwapBody, by: str) -> HeadSwapReply:
        """Put a head in, between two steps; raises `RequestRefused` (404, 409) and leaves the old one in place."""
        heads = await self._installed()
        known = {*_WORDS, *(text for head in heads for text in head.names)}
        if body.head not in known:
            message = f"head is {body.head!r}; installed: {', '.join(head.label for head in heads) or 'none'}"
            raise RequestRefused(message, code="unknown_head", param="head", status=404)
        if body.head != "none":
            await self._try_before(body.proposer)
        try:
            swapped = await self._client.swap_head(body.head, body.proposer)
        except (ModelError, MemoryPlanError, InvalidParameter) as error:
            raise RequestRefused(str(error), code="head_not_usable", param="head", status=409) from None
        after = {"head": swapped.current, "asked": body.head, "reason": body.reason}
        before = {"head": swapped.previous}
        self._emit(AuditEvent(actor=by, action="head.swapped", subject=body.proposer, before=before, after=after))
        return await self._swapped(swapped, body.proposer)

    async def _swapped(self, swapped: HeadSwapped, proposer: HeadProposerName) -> HeadSwapReply:
        """Try the new head; say what that shows, where it is quick."""
        self._untried.pop(proposer, None)
        if proposer in self._trying:
            self._trying[proposer].cancel()
        if swapped.current is None:
            return HeadSwapReply(**asdict(swapped), tried="", warnings=[])
        before = self._client.info.draft_head if proposer == CANDIDATE_HEAD else swapped.previous
        self._untried[proposer] = swapped.current, before
        await asyncio.wait([self._begin(proposer)], timeout=REPLY_S)
        tried = self._tried[swapped.current].text
        return HeadSwapReply(**asdict(swapped), tried=tried, warnings=self._warnings([swapped.current]))

    def _begin(self, proposer: HeadProposerName) -> asyncio.Task[None]:
        head, before = self._untried[proposer]
        self._tried[head] = _BEGUN
        task = self._trying[proposer] = asyncio.create_task(self._try(proposer, head, before))
        return task

    async def _try(self, proposer: HeadProposerName, head: str, before: str | None) -> None:
        if proposer == CANDIDATE_HEAD:
            await self._try_before(DRAFT_HEAD)
        trial, known = await self._trial(proposer, IN_THE_BACKGROUND), self._trials.get(before or "")
        if trial is None or not trial.num_drafts:
            self._tried[head] = _Tried(trial.describe() if trial else "the trial failed; the log says why")
            return
        text, is_worse = trial.describe(), trial.is_much_worse(known)
        compared = f"; {before}: {known.describe()}" if known else ""
        warning = f"{proposer} drafts with {head}, which brings next to nothing or much less than the one before: "
        self._tried[head] = _Tried(text + compared, (warning + text + compared) if is_worse else "")
        self._trials[head] = trial
        del self._untried[proposer]
        after = {"head": head, **asdict(trial), "is_much_worse": is_worse}
        compared_with = {"head": before, **asdict(known)} if known else None
        self._emit(AuditEvent(actor=SERVER, action="head.tried", subject=proposer, before=compared_with, after=after))

    async def _try_before(self, proposer: HeadProposerName) -> None:
        """Try the head in use for a moment, unless what it brings is known."""
        head = self._client.info.heads.get(proposer)
        if head is not None and head not in self._trials:
            trial = await self._trial(proposer, BRIEFLY)
            if trial is not None and trial.num_drafts:
                self._trials[head] = trial

    async def _trial(self, proposer: HeadProposerName, phases: Phases) -> HeadTrial | None:
        try:
            return await try_head(self._client, self._prompts(), proposer, phases)
        except Exception as error:  # contained: a head that cannot be tried drafts all the same
            log.warning("head_not_tried", proposer=proposer, error=str(describe_error(error)))
            return None

    def _warnings(self, heads: Iterable[str]) -> list[str]:
        return [warning for head in heads if (warning := self._tried.get(head, _UNTRIED).warning)]

    async def _installed(self) -> Sequence[InstalledHead]:
        """Return the heads; raises `RequestRefused` (503) if a file about them is damaged: no fault of the caller."""
        try:
            return await self._client.heads()
        except ConfigError as error:
            raise RequestRefused(str(error), code="heads_unreadable", status=503) from None


def _routes(feature: DraftHeads) -> Sequence[Route]:
    routes = Routes()

    routes.get(HEADS.path, roles=READERS, summary=HEADS.help, errors=(503,))(feature.shown)

    @routes.put(HEADS.path, roles=OPERATORS, summary="Draft with another head", errors=(404, 409, 503))
    async def swap(body: Annotated[HeadSwapBody, read_body(HeadSwapBody)], caller: SignedIn) -> HeadSwapReply:
        return await feature.swap(body, caller.actor)

    return routes.all


def feature(context: Context, prompts: Callable[[], Sequence[Sequence[int]]]) -> Feature:
    """Return the heads; `prompts` as `DraftHeads`."""
    return DraftHeads(context.client, prompts, emit=context.emit)
