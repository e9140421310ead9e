"""The sampler: it picks the token of each row of logits, in the compiled kernel or in torch.

The functions here are the readable reference of the kernel: temperature, top-k, top-p and min-p of one row. A token is
likelier than another if its logit is larger, or equal with a lower id. Each filter keeps a run of the likeliest tokens,
so together the filters keep the shortest of their runs.

Legend: V vocabulary, R rows.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from prolepsis.core.events import TokenLogprobs
from prolepsis.core.requests import WHOLE_VOCABULARY, SamplingParams
from prolepsis.engine.native import picking
from prolepsis.engine.native.library import Team
from prolepsis.engine.sampling import processors
from prolepsis.engine.sampling.noise import gumbel, native_kernel, position_key
from prolepsis.engine.sampling.processors import SamplingRow

__all__ = ["DraftRows", "Sampler", "SamplingRow"]

_HEAD = 1024  # tokens that are sorted first; the whole row is sorted only if they do not contain the nucleus


def scale(
    logits: Tensor,  # [V]
    temperature: float,
) -> Tensor:  # [V] float64, at most 0
    """Return (logits - max) / temperature; even a tiny temperature neither overflows nor loses ties."""
    values = logits.to(torch.float64)
    return (values - values.max()) * (1.0 / max(temperature, 1e-300))


def kept(
    scaled: Tensor,  # [V] float64
    params: SamplingParams,
) -> Tensor:  # [V] bool
    """Return the tokens that stay after top-k, then the nucleus of the rest, then min-p.

    The nucleus is the shortest run whose mass is at least `top_p` times the mass before it.
    """
    keep = torch.ones_like(scaled, dtype=torch.bool)
    weights = scaled.exp()
    if 0 < params.top_k < len(scaled):
        keep = _mask(likeliest(scaled, params.top_k)[: params.top_k], keep)
    if params.top_p < 1.0:
        keep = keep & _nucleus(scaled, weights, params.nucleus * float(weights[keep].sum()))
    if params.min_p > 0.0:
        keep = keep & (scaled >= math.log(params.min_p))
    return keep


def _nucleus(scaled: Tensor, weights: Tensor, mass: float) -> Tensor:
    for head in (min(_HEAD, len(scaled)), len(scaled)):
        ids = likeliest(scaled, head)
        reached = weights[ids].cumsum(0)
        if float(reached[-1]) >= mass:
            size = int((reached < mass).sum()) + 1
            return _mask(ids[:size], weights)
    return torch.ones_like(scaled, dtype=torch.bool)


def _mask(ids: Tensor, like: Tensor) -> Tensor:
    mask = torch.zeros_like(like, dtype=torch.bool)
    mask[ids] = True
    return mask


def likeliest(scaled: Tensor, count: int) -> Tensor:
    """Return the `count` likeliest ids in order, and all ids that tie with the last of them."""
    least = torch.topk(scaled, count).values[-1]
    ids = (scaled >= least).nonzero().squeeze(1)
    order = torch.sort(scaled[ids], descending=True, stable=True).indices
    return ids[order]


class DraftRows(NamedTuple):
    """A sequence's rows of logits, to pick from on the way down its draft."""

    params: SamplingParams
    key: int
    position: int  # output position of the first token to pick
    first_row: int
    """Row of the logits after the last committed token; those after node i are in row `first_row + 1 + i`."""
    tokens: Sequence[int]
    parents: Sequence[int]  # parents of the draft's nodes; -1: the root
    ends: frozenset[int]
    limit: int  # most tokens to pick, at least 1


class Sampler:
    """Picks tokens as a pure function of (logits, params, history, prefix, key, position), row by row.

    A row's token never depends on the other rows of a call. The compiled kernel serves rows on the CPU; torch serves
    other devices and machines without a compiler.
    """

    def __init__(
        self, vocab_size: int, eos_token_ids: Sequence[int], *, native: bool = True, team: Team | None = None
    ) -> None:
        """`team`: threads of a model (`ThreadedModel`) that share the rows of a call; None: the caller has them all."""
        self.vocab_size = vocab_size
        self.eos_token_ids = frozenset(eos_token_ids)
        self._kernel = native_kernel() if native else None
        self._team = team

    def ends(self, params: SamplingParams) -> frozenset[int]:
        """Return the tokens that end a sample: end of sequence unless ignored, and the caller's stop ids."""
        eos = frozenset[int]() if params.ignore_eos else self.eos_token_ids
        return eos | set(params.stop_token_ids) if params.stop_token_ids else eos

    def is_argmax(self, params: SamplingParams, position: int) -> bool:
        """Say whether `argmax` of the raw logits is the pick from output position `position` on, without a grammar."""
        return params.temperature == 0.0 and not processors.is_edited(params, position)

    def argmax(
        self,
        logits: Tensor,  # [R, V] float32
        at: Sequence[int] | None = None,
    ) -> list[int]:
        """Return the lowest id of the largest logit of every row, or of the rows `at`."""
        if (kernel := self._kernel_for(logits)) is not None:
            rows = range(logits.shape[0]) if at is None else at
            return kernel.argmax(logits, self.vocab_size, rows)
        picked = logits if at is None else logits[list(at)]
        return [int(token) for token in picked.argmax(-1).tolist()]

    def below_infinity(self, logits: Tensor, at: Sequence[int]) -> list[bool]:
        """Return of the rows `at` of logits [R, V] float32 whether all their values are numbers below infinity."""
        if (kernel := self._kernel_for(logits)) is not None:
            return kernel.below_infinity(logits, self.vocab_size, at)
        return [bool(below) for below in (logits[list(at)] < torch.inf).all(-1).tolist()]

    def pick(
        self,
        logits: Tensor,  # [R, V] float32
        rows: Sequence[SamplingRow],
        at: Sequence[int] | None = None,
    ) -> list[int]:
        """Return the token of each of `rows`, whose logits are the rows `at` (by default all, in order)."""
        places = range(len(rows)) if at is None else at
        tokens = [_only_choice(row) for row in rows]
        plain = [i for i, row in enumerate(rows) if tokens[i] < 0 and self.is_argmax(row.params, row.position)]
        if plain:
            for i, token in zip(plain, self.argmax(logits, [places[i] for i in plain]), strict=True):
                allowed = rows[i].allowed
                if allowed is None or allowed[token]:  # the largest of all is also the largest of the allowed
                    tokens[i] = token
        others = [i for i, token in enumerate(tokens) if token < 0]
        if others:
            picked = self._pick_edited(logits, [rows[i] for i in others], [places[i] for i in others])
            for i, token in zip(others, picked, strict=True):
                tokens[i] = token
        return tokens

    def has_kernel(self, logits: Tensor) -> bool:
        """Whether `verify` serves these logits."""
        return self._kernel_for(logits) is not None

    def verify(
        self,
        logits: Tensor,  # [R, V] float32
        drafts: Sequence[DraftRows],
    ) -> list[tuple[list[int], list[int], bool]]:
        """Pick down each draft in one call of the kernel, from logits that nothing edits.

        Return the picked tokens, the nodes that carry all but the last, and whether the last, if it ends the sequence
        or is its last, is drafted too.
        """
        kernel = self._kernel_for(logits)
        assert kernel is not None, "only the kernel walks down drafts"
        rows = [
            picking.NativeDraftRows(row, *_truncation(params), key, position, len(tokens), len(ends), limit)
            for params, key, position, row, tokens, _, ends, limit in drafts
        ]
        contents = [(draft.tokens, draft.parents, draft.ends) for draft in drafts]
        return kernel.verify(logits, self.vocab_size, rows, contents, self._team)

    def probabilities(
        self,
        logits: Tensor,  # [R, V] float32
        rows: Sequence[SamplingRow],
    ) -> Tensor:  # [R, V] float64
        """Return the distribution from which each row's token is sampled (one-hot for greedy rows).

        Order: bias, ban of ending tokens, penalties, temperature, top-k, top-p, min-p (`core.sampling_params`).
        """
        result = torch.zeros((len(rows), self.vocab_size), dtype=torch.float64, device=logits.device)
        for i, row in enumerate(rows):
            values = processors.edit(logits[i], row, self.ends(row.params))
            if row.params.greedy:
                result[i, values.argmax()] = 1.0
            elif (kernel := self._kernel_for(logits)) is not None:
                kernel.probabilities(self._kernel_row(values, row), self.vocab_size, result[i])
            else:
                scaled = scale(values, row.params.temperature)
                result[i] = scaled.masked_fill(~kept(scaled, row.params), -torch.inf).softmax(0)
        return result

    def scores(
        self,
        logits: Tensor,  # [V] float32
        row: SamplingRow,
    ) -> Tensor:  # [V] float64
        """Return the scores of which `pick` takes the first maximum.

        For greedy rows these are the edited logits, else scaled logits plus noise, minus infinity for truncated tokens.
        """
        return self._scores(processors.edit(logits, row, self.ends(row.params)), row)

    def noise(self, row: SamplingRow, device: torch.device | None = None) -> Tensor:  # [V] float64
        """Return the keyed noise of every token at the row's position, computed on `device` (default: CPU)."""
        return gumbel(row.key, row.position, torch.arange(self.vocab_size, device=device))

    def logprobs(
        self,
        logits: Tensor,  # [V] float32
        token: int,
        top: int,
        named: Sequence[int] = (),
    ) -> TokenLogprobs:
        """Return the log-softmax of the raw logits at `token`, and at the `top` likeliest (lowest id among equals), or
        at it and those that are `named` in their place."""
        values = logits.to(torch.float64)
        total, own = torch.logsumexp(values, 0), values[token]
        if named:  # the distinct ones, likeliest first
            distinct = torch.tensor(sorted({token, *named}), device=values.device)
            top_ids = distinct[torch.sort(values[distinct], descending=True, stable=True).indices]
        else:
            most = self.vocab_size if top == WHOLE_VOCABULARY else min(top, self.vocab_size)
            top_ids = likeliest(values, most)[:most] if most else torch.zeros(0, dtype=torch.int64)
        pairs = zip(top_ids.tolist(), (values[top_ids] - total).tolist(), strict=True)
        rank = 1 + int((values > own).sum()) + int((values[:token] == own).sum())
        return TokenLogprobs(float(own - total), tuple(pairs), rank)

    def _pick_edited(self, logits: Tensor, rows: Sequence[SamplingRow], at: Sequence[int]) -> list[int]:
        values = [
            processors.edit(logits[place], row, self.ends(row.params)) for place, row in zip(at, rows, strict=True)
        ]
        if (kernel := self._kernel_for(logits)) is None:
            return [int(self._scores(value, row).argmax()) for value, row in zip(values, rows, strict=True)]
        native_rows = [self._kernel_row(value, row) for value, row in zip(values, rows, strict=True)]
        return kernel.pick(native_rows, self.vocab_size, self._team)

    def _scores(self, values: Tensor, row: SamplingRow) -> Tensor:
        if row.params.greedy:
            return values.to(torch.float64)
        scaled = scale(values, row.params.temperature)
        return (scaled + self.noise(row, values.device)).masked_fill(~kept(scaled, row.params), -torch.inf)

    def _kernel_for(self, logits: Tensor) -> picking.SamplingKernel | None:
        fits = logits.device.type == "cpu" and logits.dtype == torch.float32 and logits.stride(-1) == 1
        return self._kernel if fits else None

    def _kernel_row(self, values: Tensor, row: SamplingRow) -> picking.LogitsRow:
        key = position_key(row.key, row.position)
        return picking.row_of(values, self.vocab_size, _truncation(row.params), key)


def _only_choice(row: SamplingRow) -> int:
    """Return the only token that the row's grammar allows, or -1 if it allows several, or its caller may not."""
    allowed = None if row.params.allowed_token_ids else row.allowed
    return int(allowed.argmax()) if allowed is not None and np.count_nonzero(allowed) == 1 else -1


def _truncation(params: SamplingParams) -> tuple[float, int, float, float]:
    return params.temperature, params.top_k, params.nucleus, params.min_p
