"""Which tokens the head can draft: the most frequent of what the target says, and those it must have."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from prolepsis.models.tokenizer import Tokenizer


def count_tokens(texts: Iterable[Tensor], vocab: int) -> Tensor:  # [vocab] int64
    """Count the tokens of `texts` ([n] integers each)."""
    counts = torch.zeros(vocab, dtype=torch.int64)
    for tokens in texts:
        counts += torch.bincount(tokens.long(), minlength=vocab)
    return counts


def choose_vocabulary(counts: Tensor, size: int, always: Sequence[int]) -> Tensor:
    """Return the rising ids ([size] int64) of `always` and the most frequent others, the lowest id among equals."""
    ranked = counts.clone()
    ranked[list(always)] = counts.max() + 1
    order = torch.sort(ranked, descending=True, stable=True).indices
    return order[: min(size, len(counts))].sort().values


def coverage(counts: Tensor, sizes: Sequence[int], always: Sequence[int]) -> dict[int, float]:
    """Return the share of counted tokens that a vocabulary of each size holds."""
    total = max(1, int(counts.sum()))
    return {size: float(counts[choose_vocabulary(counts, size, always)].sum()) / total for size in sizes}


def needed_tokens(tokenizer: Tokenizer, eos_token_ids: Sequence[int]) -> list[int]:
    """Return the tokens every draft vocabulary holds: ends, control tokens, digits, white space, and single bytes."""
    short = {
        i for token, i in tokenizer.vocab.items() if len(token) == 1 or (token.startswith("<0x") and len(token) == 6)
    }
    return sorted({*eos_token_ids, *tokenizer.special_token_ids, *short})
