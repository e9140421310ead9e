"""From the target's logits to a token: the one place where sampling happens, for plain decoding and verification.

R: rows of logits, V: vocabulary.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from prolepsis.core.events import TokenLogprobs
from prolepsis.core.sampling_params import SamplingParams
from prolepsis.sampling import processors, truncation
from prolepsis.sampling.kernel import native_kernel
from prolepsis.sampling.noise import gumbel, position_key
from prolepsis.sampling.processors import SamplingRow

__all__ = ["Sampler", "SamplingRow"]


class Sampler:
    """Picks tokens as a pure function of (logits, params, history, prefix, key, position), row by row.

    A row's token never depends on the other rows of a call. The compiled kernel serves rows on the CPU; torch serves
    other devices and machines without a compiler. `threads` share the rows of a call.
    """

    def __init__(self, vocab_size: int, eos_token_ids: Sequence[int], *, native: bool = True, threads: int = 1) -> None:
        self.vocab_size = vocab_size
        self.eos_token_ids = frozenset(eos_token_ids)
        self._kernel = native_kernel() if native else None
        self._threads = threads

    @property
    def is_native(self) -> bool:
        return self._kernel is not None

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
            tokens: list[int] = kernel.argmax(logits.data_ptr(), logits.stride(0), self.vocab_size, rows)
            return tokens
        picked = logits if at is None else logits[list(at)]
        return [int(token) for token in picked.argmax(-1).tolist()]

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
                if allowed is None or allowed[token]:  # the largest of all is the largest of those allowed
                    tokens[i] = token
        others = [i for i, token in enumerate(tokens) if token < 0]
        if others:
            picked = self._pick_edited(logits, [rows[i] for i in others], [places[i] for i in others])
            for i, token in zip(others, picked, strict=True):
                tokens[i] = token
        return tokens

    def probabilities(
        self,
        logits: Tensor,  # [R, V] float32
        rows: Sequence[SamplingRow],
    ) -> Tensor:  # [R, V] float64
        """Return the distribution each row's token is drawn from (one-hot where greedy).

        Order: bias, ban of ending tokens, penalties, temperature, top-k, top-p, min-p (`core.sampling_params`).
        """
        result = torch.zeros((len(rows), self.vocab_size), dtype=torch.float64, device=logits.device)
        for i, row in enumerate(rows):
            values = processors.edit(logits[i], row, self.ends(row.params))
            if row.params.greedy:
                result[i, values.argmax()] = 1.0
            elif (kernel := self._kernel_for(logits)) is not None:
                kernel.probabilities(_kernel_row(kernel, values, row), self.vocab_size, result[i].data_ptr())
            else:
                scaled = truncation.scale(values, row.params.temperature)
                result[i] = scaled.masked_fill(~truncation.kept(scaled, row.params), -torch.inf).softmax(0)
        return result

    def scores(
        self,
        logits: Tensor,  # [V] float32
        row: SamplingRow,
    ) -> Tensor:  # [V] float64
        """Return that of which `pick` takes the first maximum.

        Edited logits where greedy; else scaled logits plus noise, minus infinity where truncated.
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
    ) -> TokenLogprobs:
        """Return the log-softmax of the raw logits at `token` and at the `top` likeliest (lowest id among equals)."""
        values = logits.to(torch.float64)
        total = float(torch.logsumexp(values, 0))
        likeliest = truncation.likeliest(values, min(top, self.vocab_size))[:top].tolist() if top else []
        return TokenLogprobs(float(values[token]) - total, tuple((i, float(values[i]) - total) for i in likeliest))

    def _pick_edited(self, logits: Tensor, rows: Sequence[SamplingRow], at: Sequence[int]) -> list[int]:
        values = [
            processors.edit(logits[place], row, self.ends(row.params)) for place, row in zip(at, rows, strict=True)
        ]
        if (kernel := self._kernel_for(logits)) is None:
            return [int(self._scores(value, row).argmax()) for value, row in zip(values, rows, strict=True)]
        native_rows = [_kernel_row(kernel, value, row) for value, row in zip(values, rows, strict=True)]
        tokens: list[int] = kernel.pick(native_rows, self.vocab_size, self._threads)
        return tokens

    def _scores(self, values: Tensor, row: SamplingRow) -> Tensor:
        if row.params.greedy:
            return values.to(torch.float64)
        scaled = truncation.scale(values, row.params.temperature)
        return (scaled + self.noise(row, values.device)).masked_fill(~truncation.kept(scaled, row.params), -torch.inf)

    def _kernel_for(self, logits: Tensor) -> Any:
        fits = logits.device.type == "cpu" and logits.dtype == torch.float32 and logits.stride(-1) == 1
        return self._kernel if fits else None


def _only_choice(row: SamplingRow) -> int:
    """Return the token that the row's grammar leaves no choice but to pick, or -1."""
    allowed = row.allowed
    return int(allowed.argmax()) if allowed is not None and np.count_nonzero(allowed) == 1 else -1


def _kernel_row(kernel: Any, values: Tensor, row: SamplingRow) -> Any:
    params = row.params
    return kernel.Row(
        values.data_ptr(),
        values.dtype == torch.float64,
        params.temperature,
        params.top_k,
        params.top_p,
        params.min_p,
        position_key(row.key, row.position),
    )
