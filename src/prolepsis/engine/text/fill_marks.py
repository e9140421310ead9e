"""The tokens by which a model fills the middle of a text: before what precedes it, before what follows, and at the end.

Source of the names: llama.cpp (`src/llama-vocab.cpp`) and the models' own cards.
"""

from collections.abc import Mapping
from typing import NamedTuple


class FillMarks(NamedTuple):
    """Ids of the marks: BEFORE text AFTER text MIDDLE, then the model writes the middle."""

    before: int
    after: int
    middle: int
    repository: int | None = None
    """Before the name of a project whose files follow."""
    file: int | None = None
    """Before the name and the text of a file."""


_OF_FAMILIES = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen, Gemma
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # Granite, SantaCoder
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),  # GLM
    ("<\uff5cfim\u2581begin\uff5c>", "<\uff5cfim\u2581hole\uff5c>", "<\uff5cfim\u2581end\uff5c>"),  # DeepSeek
    ("\u2581<PRE>", "\u2581<SUF>", "\u2581<MID>"),  # Code Llama
)
_OF_PROJECTS = (
    ("<|repo_name|>", "<|file_sep|>"),  # Qwen
    ("<repo_name>", "<file_sep>"),  # StarCoder
)


def named_marks(vocab: Mapping[str, int]) -> FillMarks | None:
    """Return the marks that a vocabulary has by the names of a family, None if it has none."""
    for before, after, middle in _OF_FAMILIES:
        if before in vocab and after in vocab and middle in vocab:
            return FillMarks(vocab[before], vocab[after], vocab[middle], *_project_marks(vocab))
    return None


def _project_marks(vocab: Mapping[str, int]) -> tuple[int, int] | tuple[()]:
    for repository, file in _OF_PROJECTS:
        if repository in vocab and file in vocab:
            return vocab[repository], vocab[file]
    return ()
