"""Which tokens of one sample are shown as a whole, from how far its text is."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from prolepsis.server.choices import SaidToken

Range = tuple[int, int]
"""Characters of the sample's own text, the second excluded."""


@dataclass(frozen=True, slots=True)
class _Placed:
    token: SaidToken
    start: int
    end: int


class Coverage:
    """Tokens go in as they are emitted and come out once their text is decided."""

    def __init__(self) -> None:
        self._textless: list[SaidToken] = []
        self._open: deque[_Placed] = deque()
        self._end = 0

    def add(self, tokens: Sequence[SaidToken]) -> None:
        """Take emitted tokens; those without text yet belong to the text that comes next."""
        for token in tokens:
            self._textless.append(token)
            if token.end > self._end:
                self._place(token.end)

    def passes(self, tokens: Sequence[SaidToken], up_to: int) -> bool:
        """Return whether `tokens` and all before them are shown now; then they need not be added."""
        if self._open or self._textless or not tokens or not self._end < tokens[-1].end <= up_to:
            return False
        self._end = tokens[-1].end
        return True

    def shown(self, up_to: int, changed: Sequence[Range] = ()) -> tuple[list[SaidToken], list[SaidToken]]:
        """Return the tokens whose text is decided, all of it before `up_to`: those shown, and those `changed`."""
        shown: list[SaidToken] = []
        lost: list[SaidToken] = []
        while self._open and self._open[0].end <= up_to:
            placed = self._open.popleft()
            (lost if _touched(placed, changed) else shown).append(placed.token)
        return shown, lost

    def rest(self, up_to: int, changed: Sequence[Range] = ()) -> tuple[list[SaidToken], list[SaidToken]]:
        """Return what is left at the end of a sample shown up to `up_to`: tokens shown in part, and those not shown."""
        self._place(self._end)
        shown, lost = self.shown(up_to, changed)
        while self._open:
            placed = self._open.popleft()
            in_part = placed.start < up_to and not _touched(placed, changed)
            (shown if in_part else lost).append(placed.token)
        return shown, lost

    @property
    def start(self) -> int:
        """Where the first token begins that is not decided."""
        return self._open[0].start if self._open else self._end

    def _place(self, end: int) -> None:
        self._open.extend(_Placed(token, self._end, end) for token in self._textless)
        self._textless, self._end = [], end


def _touched(placed: _Placed, changed: Sequence[Range]) -> bool:
    return any(placed.start < end and start < placed.end for start, end in changed)
