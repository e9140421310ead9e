"""An answer as its parser reads it, whole again."""

from collections.abc import Sequence
from typing import NamedTuple

from prolepsis.engine.text.answer_formats.answer_parser import AnswerParser
from prolepsis.engine.text.answer_formats.call_reader import Piece


class Read(NamedTuple):
    content: str
    reasoning: str
    calls: list[tuple[str, str]]
    """Names and arguments."""


def read_all(parser: AnswerParser, parts: Sequence[str]) -> Read:
    """Return what a parser makes of an answer that comes in `parts`."""
    pieces: list[Piece] = []
    for part in parts:
        pieces += parser.push(part)
    pieces += parser.finish()
    assert all(piece.text or piece.kind == "call" for piece in pieces)
    calls: list[list[str]] = []
    for piece in pieces:
        if piece.kind == "call":
            calls.append([piece.text, ""])
        elif piece.kind == "arguments":
            assert piece.call == len(calls) - 1
            calls[-1][1] += piece.text
    content, reasoning = ("".join(p.text for p in pieces if p.kind == kind) for kind in ("content", "reasoning"))
    assert parser.num_calls == len(calls)
    return Read(content, reasoning, [(name, arguments) for name, arguments in calls])
