"""One policy and one answer: what waits for it, what it lets through, and what happens where it fails."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from prolepsis.server.output.pieces import Piece, cut, rewritten, text_of
from prolepsis.server.output.policy import Decision, Reader

Fault = Literal[
    "raised",
    "late",  # no decision within the time limit
    "invalid",  # a decision that means nothing, such as to hold back the end of an answer that has ended
    "held_too_much",  # more characters than the limit wait
]
FAULTS: tuple[Fault, ...] = ("raised", "late", "invalid", "held_too_much")


@dataclass(frozen=True, slots=True)
class Passed:
    """What a policy made of one step's tokens."""

    tokens: list[list[Piece]]
    """Let through, token by token."""
    held: list[Piece]
    """What waits for more text."""
    stopped_by: str | None = None
    """It ended the answer with the last of `tokens`."""
    fault: Fault | None = None
    num_rewrites: int = 0


class PolicyFault(Exception):
    """A policy did not say what becomes of the text."""

    def __init__(self, kind: Fault) -> None:
        super().__init__(kind)
        self.kind: Fault = kind


class Link:
    """Feeds one reader token by token. At the first fault the policy is out: all passes, or the answer ends.

    `take` changes nothing but the reader, so it may run in a thread and be given up; `settle` remembers what it found.
    """

    def __init__(self, reader: Reader | None, *, fails_open: bool, max_held: int) -> None:
        self._reader = reader
        self._fails_open = fails_open
        self._max_held = max_held
        self._held: list[Piece] = []

    @property
    def reads(self) -> bool:
        return self._reader is not None

    def take(self, tokens: Sequence[Sequence[Piece]], *, ended: bool) -> Passed:
        """Take one step's tokens (at least one), each as pieces (maybe none); `ended`: nothing comes after the last."""
        passed: list[list[Piece]] = []
        held, num_rewrites = list(self._held), 0
        for i, pieces in enumerate(tokens):
            last = ended and i == len(tokens) - 1
            if self._reader is None or (not pieces and not last):
                passed.append(list(pieces))
                continue
            held += pieces
            try:
                decision = self._decide(self._reader, held, ended=last)
            except PolicyFault as fault:
                return self._failed(passed, held, tokens[i + 1 :], fault.kind)
            num_rewrites += len(decision.rewrites)
            out, held = _released(held, decision)
            passed.append(out)
            if decision.stop_at is not None:
                return Passed(passed, [], decision.reason or "stopped", num_rewrites=num_rewrites)
        return Passed(passed, held, num_rewrites=num_rewrites)

    def fail(self, tokens: Sequence[Sequence[Piece]], kind: Fault) -> Passed:
        """Give up on the policy before it said anything of `tokens` (at least one)."""
        return self._failed([], [*self._held, *tokens[0]], tokens[1:], kind)

    def settle(self, passed: Passed) -> None:
        """Remember what waits, and that a policy with a fault is out."""
        self._held = passed.held
        if passed.fault is not None:
            self._reader = None

    def _decide(self, reader: Reader, held: Sequence[Piece], *, ended: bool) -> Decision:
        pending = text_of(held)
        try:
            decision = reader.look(pending, ended=ended)
        except TimeoutError:  # as `regex` says that a pattern takes too long
            raise PolicyFault("late") from None
        except Exception as error:  # contained: it is somebody else's code
            raise PolicyFault("raised") from error
        if not _means_something(decision, len(pending), ended=ended):
            raise PolicyFault("invalid")
        if decision.stop_at is None and decision.num_held > self._max_held:
            raise PolicyFault("held_too_much")
        return decision

    def _failed(
        self, passed: list[list[Piece]], held: list[Piece], left: Sequence[Sequence[Piece]], kind: Fault
    ) -> Passed:
        if self._fails_open:
            return Passed([*passed, held, *(list(pieces) for pieces in left)], [], fault=kind)
        return Passed([*passed, []], [], stopped_by=kind, fault=kind)


def _released(held: Sequence[Piece], decision: Decision) -> tuple[list[Piece], list[Piece]]:
    """Return what goes on and what waits."""
    length = sum(len(piece.text) for piece in held)
    at = length - decision.num_held if decision.stop_at is None else decision.stop_at
    out, kept = cut(held, at)
    return (rewritten(out, decision.rewrites) if decision.rewrites else out), kept


def _means_something(decision: object, length: int, *, ended: bool) -> bool:
    if not isinstance(decision, Decision):
        return False
    limit = length - decision.num_held if decision.stop_at is None else decision.stop_at
    if not 0 <= limit <= length or (ended and decision.stop_at is None and decision.num_held):
        return False
    position = 0
    for change in decision.rewrites:
        if not position <= change.start <= change.end <= limit:
            return False
        position = change.end
    return True
