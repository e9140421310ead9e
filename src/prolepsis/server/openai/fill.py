"""Fill in the middle: a text and what follows it as the model's prompt, and where an editor wants the middle to end."""

from prolepsis.core.errors import InvalidParameter
from prolepsis.core.given_text import given
from prolepsis.server.tokenizer import Tokenizer

_SHORTEST_LINE = 4
"""Characters of a line that is known again: a bracket alone may stand in the middle too."""


def fill_prompt(before: str | list[int], after: str, tokenizer: Tokenizer) -> list[int]:
    """Return the prompt at whose end the model writes the middle; raises `InvalidParameter` if it has not learnt to."""
    marks = tokenizer.fill_marks
    if marks is None:
        message = "suffix is given, and the model has no marks to fill a middle by; allowed: a prompt without suffix"
        raise InvalidParameter(message, param="suffix")
    if not isinstance(before, str):
        raise InvalidParameter("suffix is given with a prompt of tokens; allowed: with a text", param="suffix")
    begin = tokenizer.encode("")[:1]  # BOS, for models that have one
    known, following = (tokenizer.encode(given(text), add_special_tokens=False) for text in (before, after))
    return [*begin, marks[0], *known, marks[1], *following, marks[2]]


def fill_stop(after: str) -> tuple[str, ...]:
    """Return the stop strings of a middle: it ends before it repeats the first line of what follows.

    A line that follows on the same line as the middle may occur in it, and so may a bracket.
    """
    rest = after.lstrip("\r\n")
    line, newline, _ = rest.partition("\n")
    if rest == after or len(line.strip()) < _SHORTEST_LINE:
        return ()
    return (f"\n{line}{newline}",)
