"""An early exit of a target on the lean forward; the native one is tested against it."""

import torch
from torch import Tensor

from prolepsis.models.batch import Batch
from prolepsis.models.lean import LeanModel
from prolepsis.models.plain_cache import PlainCache
from prolepsis.models.protocol import KVCache


class LeanExit:
    """A `models.early_exit.EarlyExit` on torch's kernels, on its target's device and in its dtype."""

    def __init__(self, target: LeanModel, num_layers: int, vocab_size: int) -> None:
        self.num_layers, self.vocab_size = num_layers, vocab_size
        self._target = target

    @torch.no_grad()
    def logits(self, batch: Batch, cache: KVCache) -> Tensor:  # [L, vocab_size] float32
        """Run a pass of the first layers (`EarlyExit.logits`)."""
        assert isinstance(cache, PlainCache), "a cache made by the target"
        *_, leaving = self._target.hidden_states(batch, cache, self.num_layers)
        return self._target.logits(leaving[batch.logit_rows.to(self._target.device)], self.vocab_size)

    def likeliest(self, batch: Batch, cache: KVCache, count: int) -> tuple[Tensor, Tensor]:
        """Run a pass and return its likeliest tokens (`EarlyExit.likeliest`)."""
        logprobs, ids = self.logits(batch, cache).log_softmax(-1).topk(count)
        return ids.cpu(), logprobs.cpu()
