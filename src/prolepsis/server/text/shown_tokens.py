"""Single tokens as clients see them, of prompts and of answers: bytes, places in the text, log-probabilities."""

import codecs
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from prolepsis.core.events import TokenLogprobs, Tokens
from prolepsis.engine.text.tokenizer import Tokenizer

LOWEST_LOGPROB = -9999.0
"""Shown for a token of probability 0; JSON has no infinity."""


@dataclass(frozen=True, slots=True)
class ShownToken:
    """One token's bytes and log-probability."""

    token_id: int
    raw: bytes
    """Its own bytes, which may be a part of a character; the bytes of an answer's tokens make up its text."""
    logprob: float | None  # none: the first token of a prompt has none
    top: "tuple[ShownToken, ...]" = ()  # the likeliest tokens in its place; not for these
    offset: int = 0  # character of the sample's text in which its bytes start; for the text's own tokens only
    rank: int = 0  # its place among all tokens, from 1; for those of a prompt only

    @property
    def text(self) -> str:
        return self.raw.decode(errors="replace")


class TokenPlaces:
    """Finds the bytes of a sample's tokens, and where in its text each starts."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool, start: int = 0) -> None:
        self._tokenizer = tokenizer
        self._skips = skip_special_tokens
        self._characters = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._offset = start
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

    def shown(self, token_id: int, logprobs: TokenLogprobs | None) -> ShownToken:
        raw, found = self.raw(token_id), logprobs or TokenLogprobs(0.0)
        top = tuple(
            ShownToken(other, self.raw(other), max(value, LOWEST_LOGPROB), rank=rank)
            for rank, (other, value) in enumerate(found.top, 1)
        )
        logprob = None if logprobs is None else max(logprobs.logprob, LOWEST_LOGPROB)
        return ShownToken(token_id, raw, logprob, top, self.advance(token_id, raw), found.rank)


class ShownPrompt:
    """What is shown of one prompt, by all of its samples."""

    def __init__(
        self, token_ids: Sequence[int], tokenizer: Tokenizer, *, has_text: bool, skip_special_tokens: bool
    ) -> None:
        """`has_text`: answers begin with the prompt (`echo`)."""
        self._token_ids = token_ids
        self._tokenizer = tokenizer
        self._has_text = has_text
        self._skips = skip_special_tokens
        self.logprobs: Sequence[TokenLogprobs] = ()
        """Of its tokens from `scored_from` on."""

    def take(self, event: Tokens) -> None:
        """Keep the log-probabilities, which come with the first event of any sample."""
        self.logprobs = event.prompt_logprobs or self.logprobs

    @cached_property
    def text(self) -> str:
        """The text of its tokens, where answers begin with it."""
        if not self._has_text:
            return ""
        return self._tokenizer.decode(self._token_ids, skip_special_tokens=self._skips)

    @cached_property
    def tokens(self) -> tuple[ShownToken, ...]:
        """Its tokens with their log-probabilities; the first one has none."""
        places = TokenPlaces(self._tokenizer, skip_special_tokens=self._skips)
        pairs = zip(self._token_ids, (None, *self.logprobs), strict=True)
        return tuple(places.shown(*pair) for pair in pairs)
