"""Turns tokens into text as they come: whole characters only, nothing that may become a stop string."""

from collections.abc import Sequence
from typing import Protocol

_REPLACEMENT = "\ufffd"
_PARTIAL = 3
"""A UTF-8 character that is not whole yet has at most this many bytes, hence tokens."""
_MAX_PENDING = 8
"""Tokens without settled text after which all but a possible partial character are settled as they are."""


class Detokenizer(Protocol):
    """Anything that turns ids into text; bytes that are no whole UTF-8 characters become U+FFFD."""

    def decode(self, token_ids: Sequence[int], /) -> str: ...


class _Window:
    """Decodes one token at a time with the few before it as context, so a token costs the same at any length.

    Tokens before `_settled` have their text out already; they stay only for those decoders in which a token's text
    depends on its neighbour (a leading space).
    """

    def __init__(self, tokenizer: Detokenizer) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self._settled = 0
        self._settled_text = ""

    def push(self, token: int) -> str:
        """Return the text that `token` settles: none while a character is not whole."""
        self._tokens.append(token)
        text = self._tokenizer.decode(self._tokens)
        if text.endswith(_REPLACEMENT):
            return self._settle(len(self._tokens) - _PARTIAL) if self._num_pending > _MAX_PENDING else ""
        if len(text) <= len(self._settled_text):  # a token without text, such as a control token
            return self._settle(len(self._tokens)) if self._num_pending > _MAX_PENDING else ""
        return self._settle(len(self._tokens), text)

    def flush(self) -> str:
        """Return the pending text, partial characters as U+FFFD."""
        return self._settle(len(self._tokens)) if self._num_pending else ""

    @property
    def _num_pending(self) -> int:
        return len(self._tokens) - self._settled

    def _settle(self, end: int, text: str | None = None) -> str:
        """Return the text of the pending tokens before `end` and make them the context of what follows."""
        text = self._tokenizer.decode(self._tokens[:end]) if text is None else text
        new = text[len(self._settled_text) :]
        self._tokens = self._tokens[self._settled :]
        self._settled = end - self._settled
        self._settled_text = self._tokenizer.decode(self._tokens[: self._settled])
        return new


class TextStream:
    """One sequence's text: `push` returns text that is certain, `finish` the text held back.

    A stop string ends the stream where it completes first, character by character, so the result does not depend on
    how the tokens were grouped. The text is cut before it. Stop strings completed by a token before the
    `min_tokens`-th are ordinary text.
    """

    def __init__(self, tokenizer: Detokenizer, stop: Sequence[str] = (), *, min_tokens: int = 0) -> None:
        self.matched: str | None = None
        """The stop string that ended the text."""
        self.num_tokens = 0
        """Tokens taken so far; after a match, up to and including the one that completed it."""
        self.num_characters = 0
        """Characters of the text so far, those included that are held back or cut off."""
        self._window = _Window(tokenizer)
        self._stop = tuple(stop)
        self._min_tokens = min_tokens
        self._reach = max((len(s) for s in stop), default=1) - 1
        self._held = ""

    def push(self, token_ids: Sequence[int]) -> str:
        """Take tokens and return the text they make certain; those after a match are ignored."""
        shown = ""
        for token in token_ids:
            if self.matched is not None:
                break
            shown += self.take(token)
        return shown

    def take(self, token: int) -> str:
        """Do so for one token, before any match."""
        self.num_tokens += 1
        text = self._window.push(token)
        return self._release(text) if text else ""

    def finish(self) -> str:
        """Return the text still held back: the sequence ended. A partial character may complete a stop string."""
        if self.matched is not None:
            return ""
        shown = self._release(self._window.flush()) + self._held
        self._held = ""
        return shown

    def _release(self, text: str) -> str:
        self.num_characters += len(text)
        if not self._stop:
            return text
        text = self._held + text
        match = self._first_match(text) if self.num_tokens >= self._min_tokens else None
        if match is not None:
            self._held = ""
            self.matched = text[match[0] : match[1]]
            return text[: match[0]]
        kept = self._start_of_stop(text)
        self._held = text[len(text) - kept :]
        return text[: len(text) - kept]

    def _first_match(self, text: str) -> tuple[int, int] | None:
        """Return start and end of the stop string that ends first; of several, the longest."""
        found = [(start + len(s), start) for s in self._stop if (start := text.find(s)) >= 0]
        if not found:
            return None
        end, start = min(found)
        return start, end

    def _start_of_stop(self, text: str) -> int:
        """Return the length of the longest end of `text` with which a stop string begins."""
        for length in range(min(self._reach, len(text)), 0, -1):
            if any(s.startswith(text[-length:]) for s in self._stop):
                return length
        return 0
