"""An early exit of a target on the native forward: the same weights and threads, fewer layers."""

from torch import Tensor

from prolepsis.models.batch import Batch
from prolepsis.models.native import NativeModel, operands
from prolepsis.models.protocol import KVCache


class NativeExit:
    """A `models.early_exit.EarlyExit`."""

    def __init__(self, target: NativeModel, num_layers: int, vocab_size: int) -> None:
        self.num_layers, self.vocab_size = num_layers, vocab_size
        self._module = target.module
        self._decoder = target.decoder.make_exit(num_layers, vocab_size)

    def logits(self, batch: Batch, cache: KVCache) -> Tensor:  # [L, vocab_size] float32
        """Run a pass of the first layers (`EarlyExit.logits`)."""
        logits: Tensor = self._decoder.forward(*operands(batch, cache), [], None)[0]
        return logits

    def likeliest(self, batch: Batch, cache: KVCache, count: int) -> tuple[Tensor, Tensor]:
        """Run a pass and return its likeliest tokens (`EarlyExit.likeliest`)."""
        ids, logprobs = self._module.likeliest(self.logits(batch, cache), count)
        return ids.long(), logprobs
