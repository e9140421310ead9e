"""Copies of a prompt's text as an answer would write it: indented otherwise, behind a diff's marks, escaped for JSON.

A tokenizer joins an indent, a mark or an escape with the text next to it, so the tokens of a line then differ from
those in the prompt, and no search over tokens finds it. A copy is made once the answer shows that it writes this way,
from the line on that it wrote last, a piece a step, so that a long prompt delays no step.
"""

import json
import re
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

_PIECE = 1024  # characters made in one step
_LONGEST = 1 << 16  # characters of a prompt that are copied in each form
_MOST_FORMS = 6
_TAIL = 64  # tokens of the answer that are looked at
_EVERY = 6  # tokens between two looks
_SHORTEST = 8  # characters of a line that says where the answer is
_HUNK = re.compile(r"^@@ .*\n([ +-].*)\n", re.MULTILINE)

Render = Callable[[str], str]


class TextCodec(Protocol):
    """The part of a tokenizer that copies need."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]: ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str: ...


class Copies:
    def __init__(self, tokenizer: TextCodec, prompt: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._prompt = prompt
        self._text = ""
        self._lines: dict[str, tuple[int, int]] = {}  # a line without its indent: where it begins, and the indent
        self._seen: set[object] = set()
        self._pieces: deque[tuple[Render, int, int]] = deque()
        self._next_look = 0

    def follow(self, tokens: Sequence[int], num_prompt_tokens: int) -> None:
        """Look at how the answer goes on, every few tokens."""
        if len(tokens) < self._next_look or len(self._seen) >= _MOST_FORMS:
            return
        self._next_look = len(tokens) + _EVERY
        tail = self._tokenizer.decode(tokens[max(num_prompt_tokens, len(tokens) - _TAIL) :], skip_special_tokens=False)
        hunk = _HUNK.search(tail)
        if hunk:
            self._see("diff", [partial(_marked, mark) for mark in " -+"], self._place(hunk[1][1:]))
        elif '"' in tail and "\\n" in tail:
            line = tail.split("\\n")[-2].rsplit('"', 1)[-1]
            self._see("json", [_escaped], self._place(line))
        elif "diff" not in self._seen and "json" not in self._seen:
            self._compare_indents(tail)

    def due(self) -> list[int]:
        """Return the tokens of the next piece, empty if there is none."""
        if not self._pieces:
            return []
        render, start, end = self._pieces.popleft()
        return self._tokenizer.encode(render(self._text[start:end]), add_special_tokens=False)

    def _compare_indents(self, tail: str) -> None:
        for line in tail.split("\n")[1:-1]:
            bare = line.lstrip(" \t")
            known = self._known().get(bare)
            if known is None or len(bare) < _SHORTEST:
                continue
            shift = len(line) - len(bare) - known[1]
            if shift:
                self._see(shift, [partial(_shifted, shift)], known[0])

    def _see(self, form: object, renders: Sequence[Render], start: int) -> None:
        """Have the prompt copied in a form, from `start` on and then what is before."""
        if form in self._seen:
            return
        self._seen.add(form)
        self._known()
        end = start
        for last in (min(len(self._text), start + _LONGEST), start):
            while end < last:
                first, end = end, self._text.rfind("\n", end, end + _PIECE) + 1
                end = min(last, end if end > first else first + _PIECE)
                self._pieces += [(render, first, end) for render in renders]
            end = max(0, start - _LONGEST)

    def _place(self, line: str) -> int:
        return self._known().get(line.strip(), (0, 0))[0]

    def _known(self) -> dict[str, tuple[int, int]]:
        if not self._lines:
            self._text = self._tokenizer.decode(self._prompt, skip_special_tokens=False)
            start = 0
            for line in self._text.splitlines(keepends=True):
                bare = line.strip()
                if len(bare) >= _SHORTEST:
                    self._lines.setdefault(bare, (start, len(line) - len(line.lstrip(" \t"))))
                start += len(line)
        return self._lines


def _marked(mark: str, text: str) -> str:
    return "".join(mark + line for line in text.splitlines(keepends=True))


def _shifted(shift: int, text: str) -> str:
    lines = text.splitlines(keepends=True)
    if shift > 0:
        return "".join(" " * shift + line if line.strip() else line for line in lines)
    return "".join(line[min(-shift, len(line) - len(line.lstrip(" \t"))) :] for line in lines)


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]
