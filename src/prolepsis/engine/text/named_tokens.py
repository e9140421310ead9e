"""Tokens known by their names: those that end an answer, and those by which a model fills the middle of a text.

Ends count also where a model's files state others: files often state one end only, of a document or of a turn, and a
model writes the other as well: a filled hole ends like a document, and what follows a file in a repository is another.
Source of the names: llama.cpp (`src/llama-vocab.cpp`) and the models' own cards.
"""

from collections.abc import Mapping
from typing import NamedTuple

_OF_ANY_KIND = frozenset(
    {
        *("<|endoftext|>", "<|end_of_text|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>"),
        *("<end_of_utterance>", "<|return|>", "<|call|>", "<|calls|>", "<|flush|>", "<turn|>", "<|tool_response>"),
        *("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<|file_sep|>"),
        *("<\uff5cend\u2581of\u2581sentence\uff5c>", "[e~["),
    }
)
"""Added tokens, special or not: no text of people holds them."""
_IF_SPECIAL = frozenset(
    {"</s>", "<eos>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<PAD>", "[PAD]", "<REPO>", "<reponame>"}
)
"""Tags that are text in other vocabularies."""
_ENDS_OF_MESSAGES = {"<|end|>": ("<|return|>", "<|call|>", "<|calls|>", "<|flush|>")}
"""A token that ends a part of a turn, not the turn, where the vocabulary has one of the others."""


def named_ends(special: Mapping[str, int], others: Mapping[str, int]) -> tuple[int, ...]:
    """Return the tokens of a vocabulary that end an answer, in the order of their ids.

    `special`: its control tokens with their ids; `others`: its further added tokens.
    """
    added = {**others, **special}
    ends = [
        token
        for text, token in added.items()
        if text in _OF_ANY_KIND or (text in _IF_SPECIAL and text in special)
        if added.keys().isdisjoint(_ENDS_OF_MESSAGES.get(text, ()))
    ]
    return tuple(sorted(ends))


class FillMarks(NamedTuple):
    """Ids of the marks: BEFORE text AFTER text MIDDLE, then the model writes the middle."""

    before: int
    after: int
    middle: int
    repository: int | None = None  # before the name of a project whose files follow
    file: int | None = None  # before the name and the text of a file


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
    own = next((marks for marks in _OF_FAMILIES if vocab.keys() >= set(marks)), None)
    project = next((marks for marks in _OF_PROJECTS if vocab.keys() >= set(marks)), ())
    return None if own is None else FillMarks(*(vocab[mark] for mark in (*own, *project)))
