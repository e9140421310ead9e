"""Turns the engine's events into text: one `Choice` per sample, one `Delta` per step that has something to show."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import structlog

from prolepsis.api.tokenizer import Tokenizer, Verbatim
from prolepsis.core.errors import TokensOutOfPlace
from prolepsis.core.events import FinishReason, TokenLogprobs, Tokens
from prolepsis.core.requests import GenerateRequest
from prolepsis.engine.text import StopStrings, TextStream

log = structlog.get_logger(__name__)

ShownReason = FinishReason | Literal["content_filter"]
"""Why an answer ended, as the client sees it; `content_filter`: an output policy ended it."""
LOWEST_LOGPROB = -9999.0
"""Shown for a token of probability 0; JSON has no infinity."""


@dataclass(frozen=True, slots=True)
class ShownToken:
    """One token's text and log-probability."""

    token_id: int
    text: str
    logprob: float
    top: "tuple[ShownToken, ...]" = ()
    """The likeliest tokens in its place; for emitted tokens only."""
    offset: int = 0
    """Where its text starts in the sample's token texts; for emitted tokens only."""


class OutputToken(NamedTuple):  # there is one for every token served, and a dataclass takes four times as long to make
    """One token, the text it makes certain, and how far its own text reaches in the sample's (characters)."""

    token_id: int
    text: str
    end: int
    by: str
    """Whose drafted and accepted token it is; empty: the target's own."""
    shown: ShownToken | None = None


@dataclass(frozen=True, slots=True)
class Delta:
    """The text that one step adds to sample `index`, as its client sees it."""

    index: int
    text: str
    first: bool
    logprobs: tuple[ShownToken, ...] | None = None
    finish_reason: ShownReason | None = None
    stop_reason: str | int | None = None
    token_ids: tuple[int, ...] = ()
    tokens: tuple[OutputToken, ...] = ()
    """The same tokens one by one; empty if an output policy changed the text."""
    position: int = 0
    """Tokens of the sample that earlier deltas account for."""
    num_tokens: int = 0
    """Tokens of the answer that this accounts for, those included that are not shown."""
    delivered: tuple[str, ...] = ()
    """The proposers whose draft tokens reach the client with this, a name for each token; before the output policies,
    those of its tokens."""


class Positions:
    """Checks that what comes of each sample follows what came before."""

    def __init__(self) -> None:
        self._next: dict[int, int] = {}

    def check(self, index: int, position: int, num_tokens: int) -> None:
        """Take in the next tokens of a sample; raises `TokensOutOfPlace` where one is repeated or skipped."""
        expected = self._next.get(index, 0)
        if position != expected:
            log.error("tokens_out_of_place", sample=index, expected=expected, position=position)
            raise TokensOutOfPlace(f"sample {index} continues at token {position}; allowed: {expected}, the next one")
        self._next[index] = position + num_tokens


class Choice:
    """One sample's text as it grows; tokens without text yet are held back with their ids and log-probabilities."""

    def __init__(
        self,
        index: int,
        request: GenerateRequest,
        tokenizer: Tokenizer,
        stop: StopStrings | None = None,
        *,
        skip_special_tokens: bool = True,
        include_stop: bool = False,
    ) -> None:
        """`stop`: the request's; `include_stop`: the stop string that ends the text is part of it."""
        self.finished = False
        self._index = index
        self._tokenizer = tokenizer
        decoder = tokenizer if skip_special_tokens else Verbatim(tokenizer)
        self._stream = TextStream(decoder, stop, min_tokens=request.params.min_tokens)
        self._include_stop = include_stop
        self._with_logprobs = request.params.logprobs is not None
        self._held: list[OutputToken] = []
        self._offset = 0
        self._positions = Positions()
        self._num_told = 0
        self._first = True

    def take(self, event: Tokens) -> Delta | None:
        """Return what `event` adds, or None where there is nothing to show yet.

        A stop string ends the sample here even where the engine has not tokens so. Raises `TokensOutOfPlace`.
        """
        if self.finished:
            return None
        self._positions.check(self._index, event.position, len(event.token_ids))
        text = self._read(event)
        if event.finish_reason is not None:
            text += self._stream.finish()
        reason, stop_reason = event.finish_reason, event.stop_reason
        if self._stream.matched is not None:
            reason, stop_reason = "stop", self._stream.matched
            text += self._stream.matched if self._include_stop else ""
        self.finished = reason is not None
        if not text and not self.finished:
            return None
        tokens, self._held = tuple(self._held), []
        logprobs = tuple(one.shown for one in tokens if one.shown) if self._with_logprobs else None
        token_ids = tuple([one.token_id for one in tokens])
        by = tuple([one.by for one in tokens if one.by])
        delta = Delta(
            self._index,
            text,
            self._first,
            logprobs,
            reason,
            stop_reason,
            token_ids,
            tokens,
            position=self._num_told,
            num_tokens=len(tokens),
            delivered=by,
        )
        self._first = False
        self._num_told += len(tokens)
        return delta

    def _read(self, event: Tokens) -> str:
        """Hold the event's tokens, up to one that completes a stop string, and return the text they make certain."""
        text, stream, accepted_by = "", self._stream, event.accepted_by
        for i, token in enumerate(event.token_ids):
            if stream.matched is not None:
                break
            added = stream.take(token)
            shown = None
            if self._with_logprobs and event.logprobs is not None:
                shown = self._shown(token, event.logprobs[i])
                self._offset += len(shown.text)
            by = accepted_by[i] if i < len(accepted_by) else ""
            self._held.append(OutputToken(token, added, stream.num_characters, by, shown))
            text += added
        return text

    def _shown(self, token_id: int, logprobs: TokenLogprobs) -> ShownToken:
        top = tuple(ShownToken(i, self._text(i), max(value, LOWEST_LOGPROB)) for i, value in logprobs.top)
        return ShownToken(token_id, self._text(token_id), max(logprobs.logprob, LOWEST_LOGPROB), top, self._offset)

    def _text(self, token_id: int) -> str:
        return self._tokenizer.decode([token_id], skip_special_tokens=False)
