"""Tokens that end an answer by their names, also where a model's files state others.

Files often state one end only, of a document or of a turn, and a model writes the other as well: a filled
hole ends like a document, and what follows a file in a repository is another file.
Source of the names: llama.cpp (`src/llama-vocab.cpp`).
"""

from collections.abc import Mapping

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
    found = [
        token
        for text, token in added.items()
        if text in _OF_ANY_KIND or (text in _IF_SPECIAL and text in special)
        if added.keys().isdisjoint(_ENDS_OF_MESSAGES.get(text, ()))
    ]
    return tuple(sorted(found))
