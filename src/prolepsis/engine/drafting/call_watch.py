"""Bounds the time that the engine's thread spends in a proposer: a call that is late is left to itself.

A call cannot be interrupted from outside. So the engine's thread makes it itself, which costs nothing, and says when it
began; a watchdog in another thread may declare it overdue. Then a new thread continues with the engine's work, and the
old one, if it ever comes back, ends without touching anything. Who is first decides, once for each call.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from prolepsis.engine.drafting.proposer import SequenceView

_FADING = 0.9  # factor on the longest pass with each later pass


class Superseded(BaseException):
    """Raised in a thread whose call took too long: another thread has gone on with its work."""


class Watched(Protocol):
    name: str
    free: bool


@dataclass(slots=True)
class WatchedCall:
    proposer: Watched
    sequences: Sequence[SequenceView]
    began: float  # later by the time in which the process stood still
    returned: bool = False  # an overdue call came back after all: its proposer may be called again
    _undecided: list[None] = field(default_factory=lambda: [None])
    """Empty once it ended or is overdue; `list.pop` is atomic, so only one of both can happen."""

    def claim(self) -> bool:
        """Decide whether the call ended or is overdue; False if the other was decided before."""
        try:
            self._undecided.pop()
        except IndexError:
            return False
        return True

    @property
    def is_open(self) -> bool:
        return bool(self._undecided)


class CallWatch:
    """The call in which the engine's thread is.

    `enter` and `leave` belong to that thread, `discount` and `take_overdue` to another.
    """

    def __init__(self, limit_s: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """`limit_s`: seconds that a call may take, of a costly proposer besides the time of a pass; None: any."""
        self.limit_s = limit_s
        self.pass_s = 0.0
        """Time of the longest recent pass: a costly proposer, which may read prompts, may take this much longer."""
        self._clock = clock
        self._call: WatchedCall | None = None

    def passed(self, seconds: float) -> None:
        self.pass_s = max(seconds, _FADING * self.pass_s)

    def enter(self, proposer: Watched, sequences: Sequence[SequenceView]) -> WatchedCall | None:
        """Begin a call; None: calls are not watched."""
        if self.limit_s is None:
            return None
        call = self._call = WatchedCall(proposer, sequences, self._clock())
        return call

    def leave(self, call: WatchedCall | None) -> None:
        """End a call; raises `Superseded` if it is overdue."""
        if call is None:
            return
        if not call.claim():
            call.returned = True
            raise Superseded
        self._call = None

    def discount(self, seconds: float) -> None:
        """The process stood still for so long: the call that runs is not late for that; called as `take_overdue` is."""
        if (call := self._call) is not None:
            call.began += min(seconds, self._clock() - call.began)

    def take_overdue(self) -> WatchedCall | None:
        """Return the call that runs if it has taken too long; its thread ends when it comes back."""
        call, limit_s = self._call, self.limit_s
        if call is None or limit_s is None:
            return None
        allowed_s = limit_s if call.proposer.free else limit_s + self.pass_s
        if self._clock() - call.began <= allowed_s or not call.claim():
            return None
        self._call = None
        return call
