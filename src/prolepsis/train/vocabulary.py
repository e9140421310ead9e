"""Which tokens the head can draft: the most frequent of what the target says, and those it must have."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from prolepsis.models.files.tokenizer import Tokenizer


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


@dataclass(frozen=True, slots=True)
class StepVocabulary:
    """The S tokens of one step."""

    ids: Tensor  # [S] int64
    offsets: Tensor  # [S] float32, to be added to logits: log of how many tokens each stands for

    @classmethod
    def sampled(
        cls, sure: Tensor, others: Tensor, count: int, generator: torch.Generator | None = None
    ) -> "StepVocabulary":
        """Return `sure` and, behind them, up to `count` of `others` that stand for all of those; all int64."""
        taken = others[torch.randperm(len(others), generator=generator, device=others.device)[:count]]
        offsets = torch.zeros(len(sure) + len(taken), device=sure.device)
        if len(taken):
            offsets[len(sure) :] = math.log(len(others) / len(taken))
        return cls(torch.cat([sure, taken]), offsets)


@dataclass(frozen=True, slots=True)
class LossVocabulary:
    """The tokens of every step, and those that a sample stands for."""

    frequent: Tensor  # [F] int64
    others: Tensor  # [V - F] int64
    num_sampled: int
    """Of the others, in each step; all of them where there are no more."""
    seed: int = 0

    @classmethod
    def of(cls, frequent: Tensor, vocab: int, *, num_sampled: int, seed: int = 0) -> "LossVocabulary":
        """Return the loss vocabulary of a model with `vocab` tokens."""
        rare = torch.ones(vocab, dtype=torch.bool)
        rare[frequent] = False
        others = rare.nonzero()[:, 0]
        return cls(frequent, others, min(num_sampled, len(others)), seed)

    def at(self, step: int) -> StepVocabulary:
        """Return the tokens of `step`; the same step gives the same ones."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        return StepVocabulary.sampled(self.frequent, self.others, self.num_sampled, generator)
