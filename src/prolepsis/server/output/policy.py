"""The interface of output policies: asked about an answer's text token by token, before the client gets any of it.

A policy sees verified text only, one token's at a time, so what it decides does not depend on how drafts fared.
"""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class AnswerFacts:
    """Facts about the answer that is read."""

    request_id: str
    index: int  # index of the choice, from 0
    route: str
    tenant: str
    tier: str
    key_id: str
    model: str
    structured: bool  # the answer has a form: JSON, a grammar, tools


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Characters `start` to `end` of the pending text become `text`."""

    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class TextDecision:
    """Decision about the pending text: all of it passes, except for the parts named here."""

    num_held: int = 0  # characters at its end that wait for more text
    rewrites: tuple[Rewrite, ...] = ()  # one after another, before what is held
    stop_at: int | None = None  # the answer ends before this character
    reason: str = ""  # why the answer was stopped; the client sees it


ALLOW = TextDecision()


def hold_back(num_characters: int) -> TextDecision:
    """Keep the end of the pending text until more of the answer is there."""
    return TextDecision(num_held=num_characters)


def rewrite(*rewrites: Rewrite, num_held: int = 0) -> TextDecision:
    """Replace parts of the pending text, and keep its end."""
    return TextDecision(num_held=num_held, rewrites=rewrites)


def stop(at: int, reason: str) -> TextDecision:
    """End the answer before character `at` of the pending text, with finish reason `content_filter`."""
    return TextDecision(stop_at=at, reason=reason)


class AnswerReader(Protocol):
    """Reads one answer; it may remember what it has seen, within bounds of its own."""

    def look(self, pending: str, *, ended: bool) -> TextDecision:
        """Say what becomes of `pending`: what was held back before, and the text of one more token.

        `ended`: nothing comes after it, so nothing may be held back.
        """


class OutputPolicy(Protocol):
    """Made once when the server starts; several answers are read at a time."""

    inline: bool
    """`look` takes microseconds and waits for nothing, so it may run on the event loop. Else it runs in a thread."""

    def begin(self, answer: AnswerFacts) -> AnswerReader | None:
        """Return who reads this answer; None lets it pass unread."""
