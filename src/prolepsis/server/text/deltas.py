"""Turns the engine's events into text: one `ChoiceText` per sample, one `Delta` per step that has something to show."""

import time
from dataclasses import dataclass
from typing import Literal, NamedTuple

import structlog

from prolepsis.core.errors import TokensOutOfPlace
from prolepsis.core.events import FinishReason, Tokens
from prolepsis.core.requests import GenerateRequest
from prolepsis.engine.text.stream import StopStrings, TextStream
from prolepsis.engine.text.tokenizer import Tokenizer, VerbatimDecoder
from prolepsis.server.text.shown_tokens import ShownPrompt, ShownToken, TokenPlaces

log = structlog.get_logger(__name__)

ShownReason = FinishReason | Literal["content_filter"]
"""Why an answer ended, as the client sees it; `content_filter`: an output policy ended it."""


class OutputToken(NamedTuple):  # there is one for every token served, and a dataclass takes four times as long to make
    """One token, the text it makes certain, and how far its own text reaches in the sample's (characters)."""

    token_id: int
    text: str
    end: int
    by: str  # whose drafted and accepted token it is; empty: the target's own
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
    position: int = 0  # tokens of the sample that earlier deltas account for
    num_tokens: int = 0  # tokens of the answer that this accounts for, those included that are not shown
    delivered: tuple[str, ...] = ()
    """The proposers whose draft tokens reach the client with this, a name for each token; before the output policies,
    those of its tokens."""
    prompt: ShownPrompt | None = None  # what is shown of the prompt, if anything: with the first delta


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
        prompt: ShownPrompt | None = None,
        predict_s: float | None = None,
    ) -> None:
        """`stop`: the request's; `include_stop`: the stop string that ends the text is part of it; `prompt`: what is
        shown of it, before the text; `predict_s`: seconds after which the text ends with its line."""
        self.finished = False
        self._index = index
        decoder = tokenizer if skip_special_tokens else VerbatimDecoder(tokenizer)
        self._stream = TextStream(decoder, stop, min_tokens=request.params.min_tokens)
        self._include_stop = include_stop
        self._with_logprobs = request.params.logprobs is not None
        self._prompt = prompt
        self._predict_s = predict_s
        self._began, self._is_cut = 0.0, False
        start = len(prompt.text) if prompt is not None else 0
        self._places = TokenPlaces(tokenizer, skip_special_tokens=skip_special_tokens, start=start)
        self._held: list[OutputToken] = []
        self._positions = Positions()
        self._num_sent = 0
        self._first = True

    def take(self, event: Tokens) -> Delta | None:
        """Return what `event` adds, or None where there is nothing to show yet.

        A stop string ends the sample here even where the engine has not tokens so. Raises `TokensOutOfPlace`.
        """
        if self.finished:
            return None
        self._positions.check(self._index, event.position, len(event.token_ids))
        if self._prompt is not None:
            self._prompt.take(event)
        self._began = self._began or time.monotonic()
        text = self._read(event)
        reason, stop_reason = "length" if self._is_cut else event.finish_reason, event.stop_reason
        if reason is not None:
            text += self._stream.finish()
        if self._stream.matched is not None:
            cut = stop_reason == self._stream.matched and reason == "length"  # in a form: the engine knows
            reason, stop_reason = "length" if cut else "stop", self._stream.matched
            text += self._stream.matched if self._include_stop else ""
        self.finished = reason is not None
        if not text and not self.finished:
            return None
        tokens, self._held = tuple(self._held), []
        logprobs = tuple(token.shown for token in tokens if token.shown) if self._with_logprobs else None
        token_ids = tuple([token.token_id for token in tokens])
        by = tuple([token.by for token in tokens if token.by])
        delta = Delta(
            self._index,
            text,
            self._first,
            logprobs,
            reason,
            stop_reason,
            token_ids,
            tokens,
            position=self._num_sent,
            num_tokens=len(tokens),
            delivered=by,
            prompt=self._prompt,
        )
        self._first = False
        self._num_sent += len(tokens)
        return delta

    def _read(self, event: Tokens) -> str:
        """Hold the event's tokens, up to one that ends the text, and return the text they make certain."""
        is_late = self._predict_s is not None and time.monotonic() > self._began + self._predict_s
        text, stream, accepted_by = "", self._stream, event.accepted_by
        for i, token in enumerate(event.token_ids):
            if stream.matched is not None or self._is_cut:
                break
            added = stream.take(token)
            shown = None
            if self._with_logprobs and event.logprobs is not None:
                shown = self._places.shown(token, event.logprobs[i])
            by = accepted_by[i] if i < len(accepted_by) else ""
            self._held.append(OutputToken(token, added, stream.num_characters, by, shown))
            text += added
            self._is_cut = is_late and "\n" in added and event.finish_reason is None
        return text
