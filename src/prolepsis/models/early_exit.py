"""What an early exit is: the target's first layers with its own final norm and output, over the target's own cache.

K/V of the first layers do not depend on the layers above: what the target has cached of committed tokens serves the
exit to the bit, and an exit that writes a token's K/V writes what the target would (LayerSkip, arXiv 2404.16710).
"""

from typing import Protocol

from torch import Tensor

from prolepsis.models.batch import Batch
from prolepsis.models.protocol import KVCache

VOCAB_STEP = 32
"""An exit's vocabulary is a multiple of this.

Tokenizers learnt by merging number frequent tokens first, so the front of the vocabulary is most of a text.
"""


class EarlyExit(Protocol):
    """The first `num_layers` layers of a target, knowing the tokens 0 to `vocab_size` - 1 only."""

    @property
    def num_layers(self) -> int: ...

    @property
    def vocab_size(self) -> int: ...

    def logits(self, batch: Batch, cache: KVCache) -> Tensor:  # [L, vocab_size] float32
        """Write the K/V of all tokens of `batch` in the first layers of the target's `cache`; return logits."""

    def likeliest(self, batch: Batch, cache: KVCache, count: int) -> tuple[Tensor, Tensor]:
        """Do the same; return the `count` likeliest tokens [L, count] int64, likeliest first, and their
        log-probabilities [L, count] float32, on the CPU."""
