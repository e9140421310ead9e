"""Text on its way through output policies that remembers which characters of the answer it stands for."""

from collections.abc import Sequence
from dataclasses import dataclass

from prolepsis.server.output.policy import Rewrite


@dataclass(frozen=True, slots=True)
class Piece:
    """Stands for the characters `start` to `end` of the answer's own text; `verbatim`: it is them."""

    text: str
    start: int
    end: int
    verbatim: bool = True

    def split(self, at: int) -> tuple["Piece", "Piece"]:
        """Return its first `at` characters and the rest; a replacement stands whole for what it replaced."""
        if self.verbatim:
            middle = self.start + at
            return Piece(self.text[:at], self.start, middle), Piece(self.text[at:], middle, self.end)
        return Piece(self.text[:at], self.start, self.end, False), Piece(self.text[at:], self.end, self.end, False)


def text_of(pieces: Sequence[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


def cut(pieces: Sequence[Piece], at: int) -> tuple[list[Piece], list[Piece]]:
    """Return the pieces before character `at` of their joined text, and those from there on."""
    before: list[Piece] = []
    for i, piece in enumerate(pieces):
        if not at and piece.text:
            return before, list(pieces[i:])
        if at < len(piece.text):
            first, second = piece.split(at)
            return [*before, first], [second, *pieces[i + 1 :]]
        before.append(piece)
        at -= len(piece.text)
    return before, []


def rewritten(pieces: Sequence[Piece], rewrites: Sequence[Rewrite]) -> list[Piece]:
    """Return the pieces with parts of their joined text replaced; `rewrites` come one after another."""
    done: list[Piece] = []
    left, position = list(pieces), 0
    for change in rewrites:
        before, left = cut(left, change.start - position)
        replaced, left = cut(left, change.end - change.start)
        at = left[0].start if left else pieces[-1].end
        start, end = (replaced[0].start, replaced[-1].end) if replaced else (at, at)
        done += [*before, Piece(change.text, start, end, verbatim=False)]
        position = change.end
    return [*done, *left]
