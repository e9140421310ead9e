"""Text whose characters are known by origin: a caller gave them, or the server wrote them around what it was given."""

from bisect import bisect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, SupportsIndex

Span = tuple[int, int]
"""First character and the one behind the last."""


class GivenText(str):
    """A text with the places of the characters that a caller gave: by default all of them.

    `+`, slices, iteration, `strip` and `joined` keep the places; the plain text that others return is for `made_of`.
    """

    __slots__ = ("spans",)
    spans: tuple[Span, ...]  # spans of the given characters, from left to right, none empty

    def __new__(cls, text: str, spans: tuple[Span, ...] | None = None) -> "GivenText":
        made = super().__new__(cls, text)
        made.spans = (((0, len(text)),) if text else ()) if spans is None else spans
        return made

    def holds_given(self, start: int, end: int) -> bool:
        """Say whether any of these characters was given."""
        behind = bisect(self.spans, start, key=lambda span: span[1])
        return behind < len(self.spans) and self.spans[behind][0] < end

    def __str__(self) -> str:
        return self

    def __add__(self, other: str) -> str:
        return joined((self, other)) if isinstance(other, str) else NotImplemented

    def __radd__(self, other: str) -> str:
        return joined((other, self)) if isinstance(other, str) else NotImplemented

    def __getitem__(self, key: SupportsIndex | slice) -> "GivenText":
        text = super().__getitem__(key)
        start, end, step = (key if isinstance(key, slice) else slice(key, None)).indices(len(self))
        if step != 1:
            return GivenText(text)
        end = start + len(text)
        cut = ((max(first, start) - start, min(last, end) - start) for first, last in self.spans)
        return GivenText(text, tuple((first, last) for first, last in cut if first < last))

    def __iter__(self) -> Iterator[str]:
        return (self[i] for i in range(len(self)))

    def strip(self, chars: str | None = None, /) -> "GivenText":
        return self.lstrip(chars).rstrip(chars)

    def lstrip(self, chars: str | None = None, /) -> "GivenText":
        return self[len(self) - len(super().lstrip(chars)) :]

    def rstrip(self, chars: str | None = None, /) -> "GivenText":
        return self[: len(super().rstrip(chars))]


def joined(parts: Iterable[object], separator: str = "") -> str:
    """Return the texts of `parts` as one: plain text, unless some of it was given."""
    texts: list[str] = []
    spans: list[Span] = []
    length = 0
    for part in parts:
        text = part if isinstance(part, str) else made_of(str(part), part)
        length += len(separator) if texts else 0
        if isinstance(text, GivenText):
            spans += [(first + length, last + length) for first, last in text.spans]
        texts.append(text)
        length += len(text)
    whole = separator.join(texts)
    return GivenText(whole, tuple(spans)) if spans else whole


def given(value: Any) -> Any:
    """Return the JSON value with all its texts as given ones, keys included."""
    return _with_texts(value, GivenText)


def plain(value: Any) -> Any:
    """Return the JSON value without the places of given characters."""
    return _with_texts(value, str.__str__)


def _with_texts(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {_with_texts(key, change): _with_texts(part, change) for key, part in value.items()}
    return [_with_texts(part, change) for part in value] if isinstance(value, list) else value


def made_of(text: str, *sources: object) -> str:
    """Return what an operation made of `sources`; where one of them holds given text, all that is new counts as given.

    A text that is one of the sources itself stays as it is.
    """
    parts = () if isinstance(text, GivenText) else list(_texts(sources))
    is_given = any(isinstance(part, GivenText) and part.spans for part in parts)
    return GivenText(text) if is_given and not any(text is part for part in parts) else text


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from _texts(key)
            yield from _texts(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _texts(part)
