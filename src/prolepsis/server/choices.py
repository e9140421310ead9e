"""From the engine's events to text: one `Choice` per sample, one `Delta` per step that has something to show."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass

from prolepsis.core.events import Aborted, Failed, FinishReason, Terminal, TokenLogprobs, Tokens
from prolepsis.core.requests import GenerateRequest
from prolepsis.core.stats import RequestStats
from prolepsis.engine.client import EngineClient
from prolepsis.engine.text import TextStream
from prolepsis.server.admitted import Showing
from prolepsis.server.errors import RequestAborted
from prolepsis.server.pacing import paced
from prolepsis.server.tokenizer import Tokenizer, Verbatim

LOWEST_LOGPROB = -9999.0
"""Shown for a token of probability 0; JSON has no infinity."""


@dataclass(frozen=True, slots=True)
class ShownToken:
    """One token's text and log-probability."""

    text: str
    logprob: float


@dataclass(frozen=True, slots=True)
class ShownLogprobs:
    """An emitted token, the likeliest in its place, and where its text starts in the sample's token texts."""

    token: ShownToken
    top: tuple[ShownToken, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class Delta:
    """What one step adds to what the client sees of sample `index`."""

    index: int
    text: str
    first: bool
    logprobs: tuple[ShownLogprobs, ...] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    token_ids: tuple[int, ...] = ()


class Choice:
    """One sample's text as it grows; tokens without text yet are held back with their ids and log-probabilities."""

    def __init__(self, index: int, request: GenerateRequest, tokenizer: Tokenizer, showing: Showing) -> None:
        self.finished = False
        self._index = index
        self._tokenizer = tokenizer
        decoder = tokenizer if showing.skip_special_tokens else Verbatim(tokenizer)
        self._stream = TextStream(decoder, request.params.stop, min_tokens=request.params.min_tokens)
        self._include_stop = showing.include_stop
        self._with_logprobs = request.params.logprobs is not None
        self._held: list[ShownLogprobs] = []
        self._token_ids: tuple[int, ...] = ()
        self._offset = 0
        self._first = True

    def take(self, event: Tokens) -> Delta | None:
        """Return what `event` adds, or None where there is nothing to show yet.

        A stop string ends the sample here even where the engine has not said so.
        """
        if self.finished:
            return None
        before = self._stream.num_tokens
        text = self._stream.push(event.token_ids)
        num_tokens = self._stream.num_tokens - before
        self._token_ids += event.token_ids[:num_tokens]
        self._hold(event, num_tokens)
        if event.finish_reason is not None:
            text += self._stream.finish()
        reason, stop_reason = event.finish_reason, event.stop_reason
        if self._stream.matched is not None:
            reason, stop_reason = "stop", self._stream.matched
            text += self._stream.matched if self._include_stop else ""
        self.finished = reason is not None
        if not text and not self.finished:
            return None
        delta = Delta(self._index, text, self._first, self._release(), reason, stop_reason, self._token_ids)
        self._first, self._token_ids = False, ()
        return delta

    def _hold(self, event: Tokens, num_tokens: int) -> None:
        if not self._with_logprobs or event.logprobs is None:
            return
        for token_id, logprobs in zip(event.token_ids[:num_tokens], event.logprobs, strict=False):
            shown = self._shown(token_id, logprobs, self._offset)
            self._offset += len(shown.token.text)
            self._held.append(shown)

    def _release(self) -> tuple[ShownLogprobs, ...] | None:
        held, self._held = tuple(self._held), []
        return held if self._with_logprobs else None

    def _shown(self, token_id: int, logprobs: TokenLogprobs, offset: int) -> ShownLogprobs:
        top = tuple(self._token(i, value) for i, value in logprobs.top)
        return ShownLogprobs(self._token(token_id, logprobs.logprob), top, offset)

    def _token(self, token_id: int, logprob: float) -> ShownToken:
        text = self._tokenizer.decode([token_id], skip_special_tokens=False)
        return ShownToken(text, max(logprob, LOWEST_LOGPROB))


@dataclass(frozen=True, slots=True)
class Telling:
    """How one prompt's samples are told: the index of its first choice, what is shown, and whether token by token."""

    first_index: int
    showing: Showing
    emit_tokens: bool


async def generate_deltas(
    client: EngineClient, request: GenerateRequest, tokenizer: Tokenizer, telling: Telling
) -> AsyncGenerator[Delta | RequestStats, None]:
    """Yield every sample's deltas, last the request's stats; ending it early aborts the request.

    Raises `UserError` or `EngineError` where the engine refuses or fails the request.
    """
    first = telling.first_index
    choices = [Choice(first + i, request, tokenizer, telling.showing) for i in range(request.n)]
    events = client.generate(request)
    if telling.emit_tokens:
        events = paced(events)
    ended = False
    try:
        async for event in events:
            if isinstance(event, Tokens):
                delta = choices[event.index].take(event)
                if delta is not None:
                    yield delta
                if all(choice.finished for choice in choices) and event.finish_reason is None:
                    client.abort(request.request_id)
            else:
                ended = True
                yield _stats_of(event, complete=all(choice.finished for choice in choices))
    finally:
        if not ended:
            client.abort(request.request_id)
        if isinstance(events, AsyncGenerator):
            await events.aclose()


def _stats_of(event: Terminal, *, complete: bool) -> RequestStats:
    """Return the stats of a request whose text is `complete`, or raise what ended it before."""
    if isinstance(event, Failed):
        raise event.error
    if isinstance(event, Aborted) and not complete:
        raise RequestAborted(f"The request was aborted: {event.reason}.")
    return event.stats
