"""The first token at which two runs of one request differ, and why."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from prolepsis.core.requests import SamplingParams

if TYPE_CHECKING:
    from torch import Tensor

    from prolepsis.models.protocol import TargetModel
    from prolepsis.spec.divergence import Divergence

CHUNK = 256
"""Tokens of one pass when a context is computed again."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a run left plain decoding; token None: the run had ended there."""

    run: Literal["alone", "mixed"]
    position: int
    """Output position, from 0."""
    plain: int | None
    other: int | None
    kind: Literal["near_tie", "structural"] | None = None
    """None: not classified, as one of the runs had ended or the model is out of reach."""
    margin: float | None = None
    """Distance of the two tokens' scores, in logits."""


Classify = Callable[[Sequence[int], SamplingParams, int, tuple[int, int]], "Divergence"]
"""(context, sampling, output position, (plain token, other token)) -> how the difference is to be read."""


def first_difference(plain: Sequence[int], other: Sequence[int]) -> int | None:
    """Return the first position at which the two differ, the end of one being a difference; None where equal."""
    for i, (a, b) in enumerate(zip(plain, other, strict=False)):
        if a != b:
            return i
    return None if len(plain) == len(other) else min(len(plain), len(other))


def classifier(model: "TargetModel") -> Classify:
    """Return a classifier of requests without penalties that computes the contested logits once more.

    It has a cache of its own, and may be called only while nothing else runs the model.
    """

    def classify(context: Sequence[int], params: SamplingParams, position: int, pair: tuple[int, int]) -> "Divergence":
        from prolepsis.sampling.noise import noise_key
        from prolepsis.sampling.sampler import Sampler, SamplingRow
        from prolepsis.spec import divergence

        sampler = Sampler(model.info.vocab_size, model.info.eos_token_ids)
        row = SamplingRow(params, noise_key(params.seed, 0), position)
        return divergence.classify(last_logits(model, context), row, pair, sampler)

    return classify


def last_logits(model: "TargetModel", context: Sequence[int]) -> "Tensor":  # [V] float32
    """Return the target's logits after `context`."""
    import torch

    from prolepsis.models.protocol import PAGE_SIZE, SequenceInput, pack

    num_pages = -(-len(context) // PAGE_SIZE)
    cache, pages = model.make_cache(num_pages), list(range(num_pages))
    logits = torch.empty(0)
    with torch.no_grad():
        for start in range(0, len(context), CHUNK):
            part = SequenceInput(list(context[start : start + CHUNK]), start, pages)
            logits = model.forward(pack([part]), cache)
    return logits[-1]
