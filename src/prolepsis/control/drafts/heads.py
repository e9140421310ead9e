"""/admin/heads: the draft heads that are installed and those in use, and swaps while requests are served."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from prolepsis.control.drafts.commands import HEADS
from prolepsis.control.web.body_reader import read_body
from prolepsis.control.web.caller import SignedIn
from prolepsis.control.web.context import Context
from prolepsis.control.web.errors import RequestRefused
from prolepsis.control.web.feature import Feature
from prolepsis.control.web.fields import Body
from prolepsis.control.web.routes import OPERATORS, READERS, Route, Routes
from prolepsis.core.audit_event import AuditEvent, Emit, discard
from prolepsis.core.config import DRAFT_HEAD, HeadProposerName
from prolepsis.core.engine_client import EngineClient, HeadSwapped, InstalledHead
from prolepsis.core.errors import ConfigError, InvalidParameter, MemoryPlanError, ModelError

_WORDS = ("auto", "none")


class HeadSwapBody(Body):
    head: Annotated[str, Field(min_length=1, max_length=128)]
    """NAME (its newest version), NAME@VERSION, NAME@ALIAS, "auto" (the best that fits) or "none"."""
    proposer: HeadProposerName = DRAFT_HEAD
    """candidate_head: a second head, which drafts only where a rule or an operator names it."""
    reason: Annotated[str, Field(max_length=500)] = ""


@dataclass(frozen=True, slots=True)
class HeadsReply:
    draft_head: str | None  # NAME@VERSION of the head in use
    draft_head_reason: str  # how it was found, or why there is none
    candidate_head: str | None
    heads: list[InstalledHead]


class DraftHeads(Feature):
    """Shows and swaps the heads of one engine."""

    name = "heads"

    def __init__(self, client: EngineClient, *, emit: Emit = discard) -> None:
        self.routes = _routes(self)
        self._client = client
        self._emit = emit

    async def shown(self) -> HeadsReply:
        """Return the heads by name and version."""
        heads, info = await self._installed(), self._client.info
        return HeadsReply(info.draft_head, info.draft_head_reason, info.candidate_head, list(heads))

    async def swap(self, body: HeadSwapBody, by: str) -> HeadSwapped:
        """Put a head in, between two steps; raises `RequestRefused` (404, 409) and leaves the old one in place."""
        heads = await self._installed()
        known = {*_WORDS, *(text for head in heads for text in head.names)}
        if body.head not in known:
            message = f"head is {body.head!r}; installed: {', '.join(head.label for head in heads) or 'none'}"
            raise RequestRefused(message, code="unknown_head", param="head", status=404)
        try:
            swapped = await self._client.swap_head(body.head, body.proposer)
        except (ModelError, MemoryPlanError, InvalidParameter) as error:
            raise RequestRefused(str(error), code="head_not_usable", param="head", status=409) from None
        after = {"head": swapped.current, "asked": body.head, "reason": body.reason}
        before = {"head": swapped.previous}
        self._emit(AuditEvent(actor=by, action="head.swapped", subject=body.proposer, before=before, after=after))
        return swapped

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
    async def swap(body: Annotated[HeadSwapBody, read_body(HeadSwapBody)], caller: SignedIn) -> HeadSwapped:
        return await feature.swap(body, caller.actor)

    return routes.all


def feature(context: Context) -> Feature:
    return DraftHeads(context.client, emit=context.emit)
