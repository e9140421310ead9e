"""Recall and precision of redaction on the corpus; `python -m tests.redaction.score` prints them.

A line of `corpus/LANGUAGE.txt` is a text about made-up people: ⏎ ends a line of it, and ⟦K text⟧ marks what must go.
K is N (name), A (address), S (secret), I (number of a person) or C (contact, card, account). Every third line of a file
is held out: rules and lists were tuned on the others.
"""

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from prolepsis.redaction.values import redacted_text

Part = Literal["tuned", "held_out"]
CORPUS = Path(__file__).with_name("corpus")
_MARKED = re.compile("⟦([A-Z]) (.*?)⟧")
_MARKS = re.compile(r"\[[A-Z]{2,12}\]")


@dataclass(frozen=True, slots=True)
class Span:
    start: int
    end: int
    kind: str

    def overlaps(self, other: "Span") -> bool:
        return self.start < other.end and other.start < self.end


@dataclass(frozen=True, slots=True)
class Line:
    language: str
    part: Part
    text: str
    spans: tuple[Span, ...]


@dataclass(slots=True)
class Score:
    """Counts of spans."""

    wanted: Counter[str] = field(default_factory=Counter)
    """By kind and by language."""
    found: Counter[str] = field(default_factory=Counter)
    """Of the wanted ones: those without a letter or digit left."""
    num_marked: int = 0
    num_right: int = 0
    """Of the marked ones: those that overlap a wanted one."""
    faults: list[str] = field(default_factory=list)

    @property
    def recall(self) -> float:
        return self.found["all"] / self.wanted["all"]

    @property
    def precision(self) -> float:
        return self.num_right / self.num_marked


def corpus() -> Iterator[Line]:
    for file in sorted(CORPUS.glob("*.txt")):
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines()):
            yield _line(file.stem, "held_out" if number % 3 == 2 else "tuned", line.replace("⏎", "\n"))


def _line(language: str, part: Part, marked: str) -> Line:
    text, spans, end = "", [], 0
    for match in _MARKED.finditer(marked):
        text += marked[end : match.start()]
        spans.append(Span(len(text), len(text) + len(match[2]), match[1]))
        text, end = text + match[2], match.end()
    return Line(language, part, text + marked[end:], tuple(spans))


def score(part: Part, redact: Callable[[str], str] = redacted_text) -> Score:
    result = Score()
    for line in corpus():
        if line.part == part:
            _add(result, line, marked_spans(line.text, redact(line.text)))
    return result


def marked_spans(text: str, redacted: str) -> list[Span]:
    """Return which spans of the text were replaced by marks."""
    kept = _MARKS.split(redacted)
    match = re.fullmatch("(.+?)".join(map(re.escape, kept)), text, re.DOTALL)
    assert match is not None, f"{redacted!r} is not {text!r} with marks"
    return [Span(*match.span(i), "") for i in range(1, len(kept))]


def _add(result: Score, line: Line, marked: list[Span]) -> None:
    for span in line.spans:
        left = [c for i, c in enumerate(line.text) if span.start <= i < span.end and not _inside(i, marked)]
        is_found = not any(c.isalnum() for c in left)
        for group in ("all", span.kind, line.language):
            result.wanted[group] += 1
            result.found[group] += is_found
        if not is_found:
            result.faults.append(f"missed {line.text[span.start : span.end]!r} in {line.text!r}")
    for span in marked:
        is_right = any(span.overlaps(wanted) for wanted in line.spans)
        result.num_marked += 1
        result.num_right += is_right
        if not is_right:
            result.faults.append(f"marked {line.text[span.start : span.end]!r} in {line.text!r}")


def _inside(position: int, spans: list[Span]) -> bool:
    return any(span.start <= position < span.end for span in spans)


def main() -> None:
    parts: tuple[Part, ...] = ("tuned", "held_out")
    for part in parts:
        result = score(part)
        groups = {name: f"{result.found[name]}/{number}" for name, number in sorted(result.wanted.items())}
        print(f"{part}: recall {result.recall:.3f} precision {result.precision:.3f} {groups}")
        if part == "tuned" or "--all" in sys.argv:
            print(*result.faults, sep="\n")


if __name__ == "__main__":
    main()
