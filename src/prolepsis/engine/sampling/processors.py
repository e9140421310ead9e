"""Logits processors: logit bias, grammar mask, minimum length and penalties, applied before temperature."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from prolepsis.core.requests import SamplingParams


class TokenHistory:
    """The tokens of one sequence's prompt and committed output, counted for penalties; changed only by `append`."""

    def __init__(self, prompt: Sequence[int]) -> None:
        self._ids = np.unique(np.asarray(prompt, dtype=np.int64))
        self._counts = np.zeros(len(self._ids), dtype=np.float64)
        self._slots = {token: slot for slot, token in enumerate(self._ids.tolist())}

    def append(self, tokens: Sequence[int]) -> None:
        """Count committed output tokens, each exactly once."""
        for token in tokens:
            slot = self._slots.setdefault(token, len(self._slots))
            if slot == len(self._ids):
                self._ids = np.concatenate((self._ids, np.zeros(slot + 64, dtype=np.int64)))
                self._counts = np.concatenate((self._counts, np.zeros(slot + 64, dtype=np.float64)))
            self._ids[slot] = token
            self._counts[slot] += 1

    def counts(self, prefix: Sequence[int] = ()) -> tuple[Tensor, Tensor]:  # [N] int64 ids, [N] float64
        """Return each token seen in prompt, output or `prefix` once, and how often output and `prefix` hold it.

        `prefix` is a draft's own tokens above a node: counted in the answer, never recorded.
        """
        size = len(self._slots)
        counts = self._counts[:size].copy()
        new: dict[int, int] = {}
        for token in prefix:
            slot = self._slots.get(token)
            if slot is None:
                new[token] = new.get(token, 0) + 1
            else:
                counts[slot] += 1
        ids = np.concatenate((self._ids[:size], np.fromiter(new.keys(), dtype=np.int64, count=len(new))))
        all_counts = np.concatenate((counts, np.fromiter(new.values(), dtype=np.float64, count=len(new))))
        return torch.from_numpy(ids), torch.from_numpy(all_counts)


@dataclass(frozen=True, slots=True)
class LogitBias:
    """A request's logit bias, and the only tokens that it allows, as arrays, made once for all its tokens."""

    ids: NDArray[np.int64]  # [N], no two equal
    values: NDArray[np.float64]  # [N]
    allowed: NDArray[np.int64] | None = None  # [M]; None allows all

    @classmethod
    def of(cls, params: SamplingParams) -> "LogitBias | None":
        """Return the bias of `params`; None if they have none and allow all tokens."""
        if not (params.logit_bias or params.allowed_token_ids):
            return None
        ids, values = [token for token, _ in params.logit_bias], [value for _, value in params.logit_bias]
        allowed = np.array(params.allowed_token_ids, dtype=np.int64) if params.allowed_token_ids else None
        return cls(np.array(ids, dtype=np.int64), np.array(values, dtype=np.float64), allowed)

    def add_to(self, values: Tensor) -> None:  # [V] float64
        if self.allowed is not None:
            others = torch.ones_like(values, dtype=torch.bool)
            others[torch.from_numpy(self.allowed).to(values.device)] = False
            values.masked_fill_(others, -torch.inf)
        if values.device.type == "cpu":
            values.numpy()[self.ids] += self.values
        else:
            values[torch.from_numpy(self.ids)] += torch.from_numpy(self.values).to(values.device)


@dataclass(frozen=True, slots=True)
class SamplingRow:
    """Everything besides a row of logits that its token depends on."""

    params: SamplingParams
    key: int  # 64-bit key of the sample's noise (`noise.noise_key`)
    position: int
    history: TokenHistory | None = None  # prompt and committed output; needed only for penalties
    prefix: tuple[int, ...] = ()
    """The draft's own tokens above this row. They are not committed; `history` ends with the last committed token."""
    allowed: NDArray[np.bool_] | None = field(default=None, compare=False)  # [V]
    """Tokens that the sample's grammar allows here; None allows all."""
    bias: LogitBias | None = None
    """The logit bias of `params`, and the tokens they allow; needed only if there is one."""


def is_edited(params: SamplingParams, position: int) -> bool:
    """Say whether logits at this output position are changed before temperature."""
    is_biased = bool(params.logit_bias or params.allowed_token_ids)
    return is_biased or params.has_penalties or position < params.min_tokens


def edit(
    logits: Tensor,  # [V] float32
    row: SamplingRow,
    ends: frozenset[int],
) -> Tensor:  # [V] float64 if edited, float32 with a grammar only, else `logits` itself
    """Return the row's logits after bias, grammar, ban of the tokens in `ends` below `min_tokens`, and penalties.

    The ban does not apply if the grammar allows only ending tokens: the answer is then complete, however short. Where
    all that leaves no token, ending ones are possible: the answer cannot go on.
    Repetition divides positive and multiplies negative logits of tokens in prompt or output (Keskar et al. 2019);
    presence and frequency subtract their penalty once, and once for each time the output holds the token.
    """
    params = row.params
    if not is_edited(params, row.position):
        return logits if row.allowed is None else _only(logits, row.allowed)
    values = _copy(logits)
    if params.logit_bias or params.allowed_token_ids:
        assert row.bias is not None, "a bias needs its arrays"
        row.bias.add_to(values)
    banned = list(ends) if row.position < params.min_tokens else []
    if row.allowed is not None:
        values = _only(values, row.allowed)
        if banned and row.allowed.sum() == row.allowed[banned].sum():
            banned = []
    if banned:
        values[banned] = -torch.inf
    if ends and (banned or params.allowed_token_ids) and bool(values.max() == -torch.inf):
        values[list(ends)] = logits[list(ends)].to(values.dtype)
    if params.has_penalties:
        assert row.history is not None, "penalties need the sample's history"
        _penalise(values, params, *row.history.counts(row.prefix))
    return values


def _copy(logits: Tensor) -> Tensor:
    # torch would split this copy among its threads and might wait for a busy core; numpy takes 20 us
    if logits.device.type != "cpu":
        return logits.to(torch.float64, copy=True)
    return torch.from_numpy(logits.numpy().astype(np.float64))


def _only(values: Tensor, allowed: NDArray[np.bool_]) -> Tensor:
    """Return the values, in their own type, with minus infinity for tokens that are not `allowed`."""
    if values.device.type == "cpu":  # numpy, as in _copy
        dense = values.numpy()
        return torch.from_numpy(np.where(allowed, dense, dense.dtype.type(-np.inf)))
    return values.masked_fill(torch.from_numpy(~allowed).to(values.device), -torch.inf)


def _penalise(values: Tensor, params: SamplingParams, ids: Tensor, counts: Tensor) -> None:
    ids, counts = ids.to(values.device), counts.to(values.device)
    seen = values[ids]
    if (factor := params.repetition_penalty) != 1.0:
        seen = torch.where(seen > 0, seen / factor, seen * factor)
    seen -= params.presence_penalty * counts.clamp(max=1.0)
    seen -= params.frequency_penalty * counts
    values[ids] = seen
