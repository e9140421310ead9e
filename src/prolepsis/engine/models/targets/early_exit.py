"""Early exits: the target's first layers with its own final norm and output head, over the target's own cache.

K/V of the first layers do not depend on the layers above. The exit therefore uses the target's cache of committed
tokens, bit for bit, and an exit writes the same K/V for a token as the target (LayerSkip, arXiv 2404.16710).
"""

from typing import Protocol

import torch
from torch import Tensor

from prolepsis.core.errors import ConfigError, ModelLoadError
from prolepsis.engine.models.protocol import Batch, KVCache, TargetModel
from prolepsis.engine.models.targets.lean import LeanModel
from prolepsis.engine.models.targets.native import NativeModel, pass_input
from prolepsis.engine.models.targets.paged_attention import PlainCache

VOCAB_STEP = 32
"""An exit's vocabulary is a multiple of this size, taken from the front.

Tokenizers that learn merges number frequent tokens first, so the front of the vocabulary covers most of a text.
"""


class EarlyExit(Protocol):
    """The first `num_layers` layers of a target, over the tokens 0 to `vocab_size` - 1."""

    @property
    def num_layers(self) -> int: ...

    @property
    def vocab_size(self) -> int: ...

    def logits(self, batch: Batch, cache: KVCache) -> Tensor:  # [L, vocab_size] float32
        """Write the K/V of all tokens of `batch` in the first layers of the target's `cache`; return logits."""

    def likeliest(self, batch: Batch, cache: KVCache, count: int) -> tuple[Tensor, Tensor]:
        """Do the same; return the `count` likeliest tokens [L, count] int64, likeliest first, and their
        log-probabilities [L, count] float32, on the CPU."""


class LeanExit:
    """An `EarlyExit` on torch's kernels, on its target's device and in its dtype."""

    def __init__(self, target: LeanModel, num_layers: int, vocab_size: int) -> None:
        self.num_layers, self.vocab_size = num_layers, vocab_size
        self._target = target

    @torch.no_grad()
    def logits(self, batch: Batch, cache: KVCache) -> Tensor:  # [L, vocab_size] float32
        assert isinstance(cache, PlainCache), "a cache made by the target"
        *_, leaving = self._target.hidden_states(batch, cache, self.num_layers)
        return self._target.logits(leaving[batch.logit_rows.to(self._target.device)], self.vocab_size)

    def likeliest(self, batch: Batch, cache: KVCache, count: int) -> tuple[Tensor, Tensor]:
        logprobs, ids = self.logits(batch, cache).log_softmax(-1).topk(count)
        return ids.cpu(), logprobs.cpu()


class NativeExit:
    """An `EarlyExit` on the native forward."""

    def __init__(self, target: NativeModel, num_layers: int, vocab_size: int) -> None:
        self.num_layers, self.vocab_size = num_layers, vocab_size
        self._decoder = target.decoder.make_exit(num_layers, vocab_size)

    def logits(self, batch: Batch, cache: KVCache) -> Tensor:  # [L, vocab_size] float32
        return self._decoder.forward(pass_input(batch, cache))[0]

    def likeliest(self, batch: Batch, cache: KVCache, count: int) -> tuple[Tensor, Tensor]:
        ids, logprobs = self._decoder.top_k(self.logits(batch, cache), count)
        return ids.long(), logprobs


DEFAULT_SHARE = 6
"""By default an exit covers the first sixth of its target's vocabulary.

That is 85 % of the default model's text. It cuts the cost of a drafted token to 0.33 after one layer, and to 0.9 after
28 of 30 layers.
"""


def make_exit(target: TargetModel, num_layers: int, vocab_size: int | None = None) -> EarlyExit:
    """Return an exit of `target` after `num_layers` layers over about `vocab_size` tokens (None: the default share).

    Raises `ConfigError` for a layer that the target lacks or that is its last, and
    `ModelLoadError` for a forward that cannot stop early.
    """
    info = target.info
    if not 0 < num_layers < info.num_layers:
        raise ConfigError(
            f"early_exit_layer is {num_layers}; allowed for {info.name}: 1 to {info.num_layers - 1}",
            param="early_exit_layer",
        )
    wanted = info.vocab_size // DEFAULT_SHARE if vocab_size is None else min(vocab_size, info.vocab_size)
    known = max(VOCAB_STEP, wanted // VOCAB_STEP * VOCAB_STEP)
    if isinstance(target, NativeModel):
        return NativeExit(target, num_layers, known)
    if isinstance(target, LeanModel):
        return LeanExit(target, num_layers, known)
    raise ModelLoadError(f"the forward {info.forward} cannot stop early; allowed: native, lean")
