"""Asks a server for an answer and drafts it meanwhile.

The server never waits for a draft, so a slow or silent client gets the plain stream. Drafts go out one at a time, the
newest next; one that does not arrive costs speed, never the answer.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from dataclasses import asdict, dataclass
from typing import Any, Self

import httpx2
from msgspec import to_builtins

from prolepsis.adapters.edge.provisional import ProvisionalAnswer, ProvisionalCounts
from prolepsis.engine.drafting.proposer import Proposer
from prolepsis.engine.drafting.proposers.prompt_lookup import PromptLookupProposer
from prolepsis.remote.verify_events import Done, Emitted, Started, VerifyEvent, read_events, refusal_of

NUM_AHEAD = 32
SILENCE_S = 600.0
_REPLY_S = 10.0
"""For connecting, and for the reply to a draft."""


@dataclass(frozen=True, slots=True)
class Shown:
    """The text to show now: `text`, followed by `provisional`; it replaces the text shown before."""

    text: str  # verified, and final
    provisional: str
    corrected: bool  # provisional tokens turned out to be wrong


@dataclass(frozen=True, slots=True)
class VerifiedAnswer:
    """A complete answer: the one that the route behind `/v1/verify` gives for the same body and seed."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str | None
    seed: int
    refusal: str | None  # reason why the server took no drafts; None: it did
    counts: ProvisionalCounts
    num_drafts_sent: int
    first_provisional_s: float | None  # from the request to the first provisional token; None: there was none
    first_token_s: float | None  # from the request to the first verified token
    total_s: float
    document: Mapping[str, Any]
    """The last event of the server: usage, what became of the drafts, the mode in effect."""


def _show_nothing(shown: Shown) -> None:
    pass


class EdgeClient:
    """Answers of one server, with drafts made here. Belongs to one event loop; one answer at a time for a proposer."""

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        proposer: Proposer | None = None,
        num_ahead: int = NUM_AHEAD,
        silence_s: float = SILENCE_S,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        """`proposer`: what drafts, by default prompt lookup; `num_ahead`: most tokens shown before they are verified.
        `silence_s`: a server that says nothing for so long, while a request waits or is answered, is given up.

        `transport` replaces httpx2's own.
        """
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._http = httpx2.AsyncClient(base_url=url, headers=headers, timeout=_REPLY_S, transport=transport)
        self._timeout = httpx2.Timeout(_REPLY_S, read=silence_s)
        self._proposer = proposer or PromptLookupProposer()
        self._num_ahead = num_ahead

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def chat(
        self, body: Mapping[str, object], on_change: Callable[[Shown], object] = _show_nothing
    ) -> VerifiedAnswer:
        """Return the answer to a body of /v1/chat/completions; `on_change` is called when other text is to be shown.

        Raises `ServerError`, and httpx2's errors if the server cannot be reached or falls silent.
        """
        return await self._answer("/v1/verify/chat/completions", body, on_change)

    async def completion(
        self, body: Mapping[str, object], on_change: Callable[[Shown], object] = _show_nothing
    ) -> VerifiedAnswer:
        """Return the answer to a body of /v1/completions; as `chat`."""
        return await self._answer("/v1/verify/completions", body, on_change)

    async def _answer(
        self, path: str, body: Mapping[str, object], on_change: Callable[[Shown], object]
    ) -> VerifiedAnswer:
        began = time.monotonic()
        async with self._http.stream("POST", path, json=body, timeout=self._timeout) as response:
            if response.status_code != httpx2.codes.OK:
                await response.aread()
                raise refusal_of(response)
            async with aclosing(read_events(response.aiter_lines())) as events:
                started = await anext(events)
                assert isinstance(started, Started), "a stream begins with what can be drafted from"
                num_ahead = 0 if started.drafts.reason else self._num_ahead
                answer = ProvisionalAnswer(started, self._proposer, num_ahead=num_ahead)
                answering = _EdgeAnswer(self._http, started, answer, on_change, began)
                return await answering.follow(events)


class _EdgeAnswer:
    """One answer: follows its events and sends drafts meanwhile."""

    def __init__(
        self,
        http: httpx2.AsyncClient,
        started: Started,
        answer: ProvisionalAnswer,
        on_change: Callable[[Shown], object],
        began: float,
    ) -> None:
        self._http = http
        self._started = started
        self._answer = answer
        self._on_change = on_change
        self._began = began
        self._first_provisional_s: float | None = None
        self._first_token_s: float | None = None
        self._num_drafts_sent = 0
        self._changed = asyncio.Event()

    async def follow(self, events: AsyncIterator[VerifyEvent]) -> VerifiedAnswer:
        """Return the answer when its last event has come."""
        event: VerifyEvent | None = None
        sending = asyncio.create_task(self._send_drafts())
        try:
            self._show(corrected=False)
            async for event in events:
                if isinstance(event, Done):
                    break
                assert isinstance(event, Emitted), "a stream begins once"
                self._first_token_s = self._first_token_s or time.monotonic() - self._began
                self._show(corrected=self._answer.take(event))
        finally:
            self._answer.finish()
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
        assert isinstance(event, Done), "events end with the last one or with an error"
        self._show(corrected=False)
        return VerifiedAnswer(
            text=self._answer.text,
            token_ids=self._answer.token_ids,
            finish_reason=event.finish_reason,
            seed=self._started.seed,
            refusal=self._started.drafts.reason,
            counts=self._answer.counts,
            num_drafts_sent=self._num_drafts_sent,
            first_provisional_s=self._first_provisional_s,
            first_token_s=self._first_token_s,
            total_s=time.monotonic() - self._began,
            document=to_builtins(event),
        )

    def _show(self, *, corrected: bool) -> None:
        answer = self._answer
        if answer.provisional and self._first_provisional_s is None:
            self._first_provisional_s = time.monotonic() - self._began
        self._changed.set()
        self._on_change(Shown(answer.text, answer.provisional_text, corrected))

    async def _send_drafts(self) -> None:
        """Send one draft after the other, until the server takes none."""
        path = f"/v1/verify/{self._started.id}/drafts"
        while True:
            await self._changed.wait()
            self._changed.clear()
            draft = self._answer.due_draft()
            if draft is None:
                continue
            try:
                reply = await self._http.post(path, json=asdict(draft))
            except httpx2.HTTPError:  # contained: a draft costs speed, never the answer
                self._answer.not_sent()
                continue
            if reply.status_code != httpx2.codes.OK:
                return
            self._num_drafts_sent += 1
            if reply.json()["taken"]:
                self._changed.set()  # there may be more to send by now
            else:
                self._answer.not_sent()
