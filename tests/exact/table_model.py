"""A target of a few tokens whose logits are a known function of the whole prefix, and decoding with it."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from prolepsis.core.requests import SamplingParams
from prolepsis.engine.drafting.draft import ROOT, Draft
from prolepsis.engine.drafting.verify import SequenceStep, VerifyResult, verify_batch
from prolepsis.engine.sampling.processors import LogitBias, TokenHistory
from prolepsis.engine.sampling.sampler import Sampler, SamplingRow

Drafter = Callable[[tuple[int, ...]], Draft | None]
"""From the committed output to a draft."""


class TableModel:
    """Random logits for every prefix, drawn once from a hash of it."""

    def __init__(self, vocab_size: int, seed: int) -> None:
        self.vocab_size = vocab_size
        self._seed = seed
        self._rows: dict[tuple[int, ...], Tensor] = {}

    def logits(self, prefix: Sequence[int]) -> Tensor:  # [V] float32
        key = tuple(prefix)
        if key not in self._rows:
            digest = hashlib.sha256(repr((self._seed, key)).encode()).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
            self._rows[key] = torch.randn(self.vocab_size, generator=generator) * 1.5
        return self._rows[key]

    def draft_logits(self, prefix: Sequence[int], draft: Draft | None) -> Tensor:  # [1 + nodes, V]
        """Return the logits after the prefix and after each node of the draft."""
        paths: list[tuple[int, ...]] = []
        rows = [self.logits(prefix)]
        for token, parent in zip(draft.tokens, draft.parents, strict=True) if draft else ():
            paths.append((*(() if parent == ROOT else paths[parent]), token))
            rows.append(self.logits((*prefix, *paths[-1])))
        return torch.stack(rows)


@dataclass(frozen=True, slots=True)
class TableSequence:
    """One sequence to decode."""

    model: TableModel
    sampler: Sampler
    params: SamplingParams
    key: int
    prompt: tuple[int, ...]


def decode_plainly(sequence: TableSequence) -> tuple[int, ...]:
    """Return the whole output, one token at a time, with `Sampler.pick` alone."""
    output: list[int] = []
    history = TokenHistory(sequence.prompt)
    while len(output) < sequence.params.max_tokens:
        row = SamplingRow(sequence.params, sequence.key, len(output), history, bias=LogitBias.of(sequence.params))
        token = sequence.sampler.pick(sequence.model.logits((*sequence.prompt, *output))[None], [row])[0]
        output.append(token)
        history.append([token])
        if token in sequence.sampler.ends(sequence.params):
            break
    return tuple(output)


def decode_speculatively(sequence: TableSequence, drafter: Drafter) -> tuple[tuple[int, ...], list[VerifyResult]]:
    """Return the whole output and the results of its steps."""
    output: tuple[int, ...] = ()
    history = TokenHistory(sequence.prompt)
    results: list[VerifyResult] = []
    while len(output) < sequence.params.max_tokens:
        draft = drafter(output)
        step = SequenceStep(
            draft, sequence.params, sequence.key, len(output), 0, history, bias=LogitBias.of(sequence.params)
        )
        logits = sequence.model.draft_logits((*sequence.prompt, *output), draft)
        result = verify_batch([step], logits, sequence.sampler)[0]
        results.append(result)
        output += result.tokens
        history.append(result.tokens)
        if result.end_token is not None:
            break
    return output, results
