"""What the engine needs of a target (or draft) model, whichever forward runs it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from prolepsis.models.batch import Batch

PAGE_SIZE = 32
"""Tokens a page holds, in every forward: the contraction length of one AMX tile product over values."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Facts about a loaded model that others plan with."""

    name: str
    architecture: str
    forward: str
    """Which forward runs it, e.g. 'native (avx512_bf16)', 'lean (torch)', 'transformers'."""
    vocab_size: int
    max_positions: int
    num_layers: int
    page_bytes: int
    """Memory of one KV page over all layers, in bytes."""
    weight_bytes: int
    eos_token_ids: tuple[int, ...]


class KVCache(Protocol):
    """KV pages of all layers. Page numbers and what they hold are the page pool's business (`kv.pages`)."""

    @property
    def num_pages(self) -> int: ...

    def copy_page(self, source: int, target: int) -> None:
        """Copy one page over all layers (copy-on-write)."""

    def move(self, pages: Sequence[int], moves: Sequence[tuple[int, int]]) -> None:
        """Within one sequence's `pages`, copy slot `source` to slot `target` for each (source, target), in order.

        Compacts the accepted path of a tree: targets ascend and never lie above their sources.
        """


class TargetModel(Protocol):
    """A causal language model over paged KV."""

    @property
    def info(self) -> ModelInfo: ...

    def make_cache(self, num_pages: int) -> KVCache:
        """Allocate zeroed KV pages."""

    def forward(self, batch: Batch, cache: KVCache) -> Tensor:  # [L, vocab] float32
        """Write the K/V of all tokens of `batch` into `cache` and return the logits of `batch.logit_rows`."""


@runtime_checkable
class FeatureModel(TargetModel, Protocol):
    """A target model that shows its hidden states, which draft heads are conditioned on."""

    def forward_features(self, batch: Batch, cache: KVCache, taps: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Do `forward`; return logits [L, vocab] float32 and features [T, len(taps) * hidden] bfloat16.

        Feature i of a token is the hidden state that enters layer `taps[i]` (0-based); the number of layers names what
        leaves the last one, before the final norm.
        """


@runtime_checkable
class ArgmaxModel(FeatureModel, Protocol):
    """A target model whose pass finds the largest logits while they are at hand."""

    def forward_argmax(self, batch: Batch, cache: KVCache, taps: Sequence[int]) -> tuple[Tensor, Tensor, list[int]]:
        """Do `forward_features` and return the lowest id of the largest of each row of logits too."""
