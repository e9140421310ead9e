"""Recall and precision of redaction on the corpus; `python -m tests.control.redaction.score` prints them by language
and kind.

A line of `corpus/LANGUAGE.txt` is a text about made-up people: ⏎ ends a line of it, and ⟦K text⟧ marks what must go.
K is N (name), A (address), S (secret), I (number of a person or record), B (date of birth) or C (contact, card,
account, wallet). Every third line of a file
is held out: rules and lists were tuned on the others. The lines of `corpus/tuned` were all tuned on, those of
`corpus/held_out` never.
"""

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from prolepsis.control.redaction.values import redacted_text

Part = Literal["tuned", "held_out"]
CORPUS = Path(__file__).with_name("corpus")
_PARTS: dict[str, Part] = {"tuned": "tuned", "held_out": "held_out"}
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
    marked: Counter[str] = field(default_factory=Counter)
    """By language."""
    right: Counter[str] = field(default_factory=Counter)
    """Of the marked ones: those that overlap a wanted one."""
    faults: list[str] = field(default_factory=list)

    @property
    def recall(self) -> float:
        return self.recall_of("all")

    @property
    def precision(self) -> float:
        return self.right["all"] / self.marked["all"]

    def recall_of(self, group: str) -> float:
        return self.found[group] / self.wanted[group]


def corpus() -> Iterator[Line]:
    for file in sorted(CORPUS.rglob("*.txt")):
        of_all = _PARTS.get(file.parent.name)
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines()):
            part = of_all or ("held_out" if number % 3 == 2 else "tuned")
            yield _line(file.stem, part, line.replace("⏎", "\n"))


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
        for group in ("all", line.language):
            result.marked[group] += 1
            result.right[group] += is_right
        if not is_right:
            result.faults.append(f"marked {line.text[span.start : span.end]!r} in {line.text!r}")


def _inside(position: int, spans: list[Span]) -> bool:
    return any(span.start <= position < span.end for span in spans)


def table(*results: Score) -> Iterator[str]:
    """Yield rows of Markdown by kind and language: what was found of what is wanted, what of the marks is right."""
    for group in sorted(results[0].wanted, key=lambda name: (name != "all", name)):
        cells = [group]
        for result in results:
            cells.append(f"{result.found[group]} of {result.wanted[group]}")
            cells.append(f"{result.right[group]} of {result.marked[group]}" if result.marked[group] else "")
        yield f"| {' | '.join(cells)} |"


def main() -> None:
    tuned, held_out = score("tuned"), score("held_out")
    print("| | tuned: recall | precision | held out: recall | precision |\n|---|---|---|---|---|")
    print(*table(tuned, held_out), sep="\n")
    faults = [*tuned.faults, *(held_out.faults if "--all" in sys.argv else ())]
    print(*faults, sep="\n")


if __name__ == "__main__":
    main()
