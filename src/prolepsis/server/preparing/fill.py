"""Fill in the middle: a text and what follows it as the model's prompt, and where an editor wants the middle to end."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from prolepsis.core.errors import InvalidParameter
from prolepsis.core.given_text import given
from prolepsis.engine.text.named_tokens import FillMarks
from prolepsis.engine.text.tokenizer import Tokenizer

_SHORTEST_LINE = 4
"""Characters of a line that is known again: a bracket alone may stand in the middle too."""
_PROJECT, _FILE, _SNIPPET = "myproject\n", "filename\n", "\n\n--- snippet ---\n\n"
"""What llama.cpp writes for names that requests do not state, and before a file where the model has no mark for one."""


@dataclass(frozen=True, slots=True)
class Gap:
    """A place in a file, with what an editor knows of the project."""

    before: str
    line: str
    """Between `before` and the place; it has tokens of its own, so that `before` stays the same while it grows."""
    after: str
    files: Sequence[tuple[str, str]]


def fill_prompt(before: str | list[int], after: str, tokenizer: Tokenizer) -> list[int]:
    """Return the prompt at whose end the model writes the middle; raises `InvalidParameter` if it has not learnt to."""
    marks = _marks(tokenizer, "suffix")
    if not isinstance(before, str):
        raise InvalidParameter("suffix is given with a prompt of tokens; allowed: with a text", param="suffix")
    known, following = (tokenizer.encode(given(text), add_special_tokens=False) for text in (before, after))
    return [*_begin(tokenizer), marks.before, *known, marks.after, *following, marks.middle]


def gap_prompt(gap: Gap, tokenizer: Tokenizer, most: int) -> list[int]:
    """Return the prompt of at most `most` tokens for a gap: the pattern for projects, as llama.cpp has it.

    Of what is too long the tokens next to the gap stay, three times as many before it as behind it, and then the
    files' last ones.
    """

    def encode(text: str) -> list[int]:
        return tokenizer.encode(given(text), add_special_tokens=False)

    marks, quarter = _marks(tokenizer, "input_suffix"), most // 4
    before, after = [*encode(gap.before), *encode(gap.line)], encode(gap.after)
    middle = [marks.before, *_last(before, 3 * quarter), marks.after, *after[: max(0, quarter - 4)], marks.middle]
    begin = _begin(tokenizer)
    files = _files(gap.files, marks, encode)
    return [*begin, *_last(files, most - len(begin) - len(middle)), *middle]


def _marks(tokenizer: Tokenizer, field: str) -> FillMarks:
    if tokenizer.fill_marks is None:
        message = f"{field} is given, and the model has no marks to fill a middle by; allowed: a prompt without suffix"
        raise InvalidParameter(message, param=field)
    return tokenizer.fill_marks


def _begin(tokenizer: Tokenizer) -> list[int]:
    return tokenizer.encode("")[:1]  # BOS, for models that have one


def _last(tokens: list[int], number: int) -> list[int]:
    return tokens[-number:] if number > 0 else []


def _files(files: Sequence[tuple[str, str]], marks: FillMarks, encode: Callable[[str], list[int]]) -> list[int]:
    tokens = [] if marks.repository is None else [marks.repository, *encode(_PROJECT)]
    for name, text in files:
        tokens += encode(_SNIPPET) if marks.file is None else [marks.file, *encode(f"{name}\n")]
        tokens += encode(text)
    return tokens if marks.file is None else [*tokens, marks.file, *encode(_FILE)]


def fill_stop(after: str) -> tuple[str, ...]:
    """Return the stop strings of a middle: it ends before it repeats the first line of what follows.

    A line that follows on the same line as the middle may occur in it, and so may a bracket.
    """
    rest = after.lstrip("\r\n")
    line, newline, _ = rest.partition("\n")
    if rest == after or len(line.strip()) < _SHORTEST_LINE:
        return ()
    return (f"\n{line}{newline}",)
