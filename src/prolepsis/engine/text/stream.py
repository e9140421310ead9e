"""Turns tokens into text as they come: whole characters only, nothing that may become a stop string."""

from collections import deque
from collections.abc import Sequence
from typing import Protocol

_REPLACEMENT = "\ufffd"
_PARTIAL = 3  # an incomplete UTF-8 character has at most this many bytes, and so at most this many tokens
_MAX_PENDING = 8
"""Tokens without settled text after which all but a possible partial character are settled as they are."""


class Detokenizer(Protocol):
    """Anything that turns ids into text; bytes that are not complete UTF-8 characters become U+FFFD."""

    def decode(self, token_ids: Sequence[int], /, *, skip_special_tokens: bool = True) -> str: ...


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


class StopStrings:
    """Finds stop strings character by character; one serves all streams of a request.

    An automaton (Aho, Corasick 1975) whose state is the longest beginning of a stop string with which the text ends.
    """

    def __init__(self, strings: Sequence[str]) -> None:
        self._next: list[dict[str, int]] = [{}]
        self.length = [0]
        """Characters of each state's text: so many of the last ones may belong to a stop string."""
        self.found: list[str | None] = [None]
        """The longest stop string with which each state's text ends, which the last character completed."""
        self._shorter = [0]  # the longest other state with which each state's text ends
        self._strings = tuple(strings)
        for string in strings:
            state = 0
            for length, character in enumerate(string, 1):
                if character not in self._next[state]:
                    self._next[state][character] = len(self._next)
                    self._next.append({})
                    self.length.append(length)
                    self.found.append(None)
                    self._shorter.append(0)
                state = self._next[state][character]
            self.found[state] = string
        states = deque(self._next[0].values())
        while states:  # link each to the next shorter one, shorter ones first
            state = states.popleft()
            for character, longer in self._next[state].items():
                self._shorter[longer] = self.step(self._shorter[state], character)
                self.found[longer] = self.found[longer] or self.found[self._shorter[longer]]
                states.append(longer)

    @classmethod
    def of(cls, strings: Sequence[str]) -> "StopStrings | None":
        return cls(strings) if strings else None

    def step(self, state: int, character: str) -> int:
        """Return the state after one more character; 0 is the first."""
        while state and character not in self._next[state]:
            state = self._shorter[state]
        return self._next[state].get(character, 0)

    def name(self, text: str) -> bool:
        return any(text in string for string in self._strings)


class TextStream:
    """One sequence's text: `push` returns text that is certain, `finish` the text held back.

    A stop string ends the stream where it completes first, character by character, so the result does not depend on
    how the tokens were grouped. The text is cut before it. Stop strings completed by a token before the
    `min_tokens`-th are ordinary text. A control token, which the text does not show, is part of the stop strings that
    name it.
    """

    def __init__(self, tokenizer: Detokenizer, stop: StopStrings | None = None, *, min_tokens: int = 0) -> None:
        self.matched: str | None = None  # the stop string that ended the text
        self.num_tokens = 0  # tokens taken so far; after a match, up to and including the one that completed it
        self.num_characters = 0  # characters of the text so far, those included that are held back or cut off
        self._tokenizer = tokenizer
        self._window = _Window(tokenizer)
        self._stop = stop
        self._state = 0
        self._min_tokens = min_tokens
        self._held = ""
        self._held_shows = b""
        """1 for each character that is held back, 0 where it is one of a control token, which `_held` leaves out."""

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
        if text := self._window.push(token):
            return self._release(text)
        if self._stop is not None:  # it may be a control token that stop strings name
            name = self._tokenizer.decode([token], skip_special_tokens=False)
            if self._stop.name(name) and not self._tokenizer.decode([token]):
                return self._release(name, shows=False)
        return ""

    def finish(self) -> str:
        """Return the text still held back: the sequence ended. A partial character may complete a stop string."""
        if self.matched is not None:
            return ""
        shown = self._release(self._window.flush()) + self._held
        self._held = ""
        return shown

    def _release(self, text: str, *, shows: bool = True) -> str:
        self.num_characters += len(text) if shows else 0
        if self._stop is None:
            return text
        stop, state, may_end = self._stop, self._state, self.num_tokens >= self._min_tokens
        held = self._held + text if shows else self._held
        held_shows = self._held_shows + bytes([shows]) * len(text)
        for end, character in enumerate(text, len(self._held_shows) + 1):
            state = stop.step(state, character)
            if may_end and (matched := stop.found[state]) is not None:
                self.matched, self._held = matched, ""
                return held[: sum(held_shows[: end - len(matched)])]
        self._state = state
        certain = len(held_shows) - stop.length[state]
        num_shown = sum(held_shows[:certain])
        self._held, self._held_shows = held[num_shown:], held_shows[certain:]
        return held[:num_shown]
