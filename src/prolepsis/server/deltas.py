"""Turns the engine's events into text: one `ChoiceText` per sample, one `Delta` per step that has something to show."""

import codecs
from dataclasses import dataclass
from typing import Literal, NamedTuple

import structlog

from prolepsis.core.errors import TokensOutOfPlace
from prolepsis.core.events import FinishReason, TokenLogprobs, Tokens
from prolepsis.core.requests import GenerateRequest
from prolepsis.engine.text import StopStrings, TextStream
from prolepsis.server.tokenizer import Tokenizer, Verbatim

log = structlog.get_logger(__name__)

ShownReason = FinishReason | Literal["content_filter"]
"""Why an answer ended, as the client sees it; `content_filter`: an output policy ended it."""
LOWEST_LOGPROB = -9999.0
"""Shown for a token of probability 0; JSON has no infinity."""


@dataclass(frozen=True, slots=True)
class ShownToken:
    """One token's bytes and log-probability."""

    token_id: int
    raw: bytes
    """Its own bytes, which may be a part of a character; the bytes of an answer's tokens make up its text."""
    logprob: float
    top: "tuple[ShownToken, ...]" = ()
    """The likeliest tokens in its place; for emitted tokens only."""
    offset: int = 0
    """Character of the sample's text in which its bytes start; for emitted tokens only."""

    @property
    def text(self) -> str:
        return self.raw.decode(errors="replace")


class _TokenPlaces:
    """Finds the bytes of a sample's tokens, and where in its text each starts."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skips = skip_special_tokens
        self._characters = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._offset = 0
        self._first = True

    def raw(self, token_id: int) -> bytes:
        """Return the bytes of a token at the present place: some decoders drop the space before the first token."""
        raw = self._tokenizer.token_bytes(token_id)
        if self._first and raw[:1] == b" " and not self._tokenizer.decode([token_id]).startswith(" "):
            return raw[1:]
        return raw

    def advance(self, token_id: int, raw: bytes) -> int:
        """Return where a token starts, and go on behind it; control tokens that are not shown take no place."""
        offset = self._offset
        if not self._skips or self._tokenizer.decode([token_id]):
            self._offset += len(self._characters.decode(raw))
        self._first = False
        return offset


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
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
    """Of the sample's prompt, where they are asked for: with its first delta."""


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


class ChoiceText:
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
        decoder = tokenizer if skip_special_tokens else Verbatim(tokenizer)
        self._stream = TextStream(decoder, stop, min_tokens=request.params.min_tokens)
        self._include_stop = include_stop
        self._with_logprobs = request.params.logprobs is not None
        self._places = _TokenPlaces(tokenizer, skip_special_tokens=skip_special_tokens)
        self._held: list[OutputToken] = []
        self._positions = Positions()
        self._num_told = 0
        self._first = True
        self._prompt_logprobs: tuple[TokenLogprobs, ...] | None = None

    def take(self, event: Tokens) -> Delta | None:
        """Return what `event` adds, or None where there is nothing to show yet.

        A stop string ends the sample here even where the engine has not tokens so. Raises `TokensOutOfPlace`.
        """
        if self.finished:
            return None
        self._positions.check(self._index, event.position, len(event.token_ids))
        self._prompt_logprobs = event.prompt_logprobs or self._prompt_logprobs
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
            prompt_logprobs=self._prompt_logprobs if self._first else None,
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
            by = accepted_by[i] if i < len(accepted_by) else ""
            self._held.append(OutputToken(token, added, stream.num_characters, by, shown))
            text += added
        return text

    def _shown(self, token_id: int, logprobs: TokenLogprobs) -> ShownToken:
        places = self._places
        top = tuple(ShownToken(i, places.raw(i), max(value, LOWEST_LOGPROB)) for i, value in logprobs.top)
        raw = places.raw(token_id)
        offset = places.advance(token_id, raw)
        return ShownToken(token_id, raw, max(logprobs.logprob, LOWEST_LOGPROB), top, offset)
