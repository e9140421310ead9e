"""The interface of a model: its input, a flat batch of tokens for prefill, decode and verify alike, and its results.

Legend: T tokens of this step, S sequences, P pages of the longest sequence, L logits kept.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from prolepsis.engine.native.library import Team


@dataclass(frozen=True, slots=True)
class Batch:
    """Tokens of sequence s are `starts[s] : starts[s + 1]`; its cached context is `cached[s]` tokens in `pages[s]`.

    The K/V of token t of sequence s is written at slot `cached[s] + (t - starts[s])` of that sequence, which in a tree
    is not its position. Token t attends to the cached context and to its ancestors (`parents`) among this step's
    tokens, itself included. In a chain, slot and position are the same.
    """

    token_ids: Tensor  # [T] int32
    positions: Tensor  # [T] int32: cached[s] + depth of the token below the cached context (0 for the first)
    parents: Tensor  # [T] int32: index of the parent among the sequence's own tokens of this step, -1 for none
    starts: Tensor  # [S + 1] int32
    cached: Tensor  # [S] int32
    pages: Tensor  # [S, P] int32, rows padded with 0 after the sequence's own pages
    logit_rows: Tensor  # [L] int32: the tokens whose logits are kept

    @property
    def num_tokens(self) -> int:
        return self.token_ids.shape[0]

    @property
    def num_sequences(self) -> int:
        return self.cached.shape[0]


@dataclass(frozen=True, slots=True)
class SequenceInput:
    """One sequence's part of a batch as plain values; `pack` turns them into tensors."""

    token_ids: list[int]
    cached: int
    pages: list[int]
    parents: list[int] | None = None  # None: a chain
    keep_last: int = 1
    """Logits are kept for this many of the last tokens; 0 for a prefill chunk that is not the last."""


def pack(sequences: list[SequenceInput]) -> Batch:
    """Return the flat batch of `sequences`, on the CPU."""
    token_ids: list[int] = []
    positions: list[int] = []
    parents: list[int] = []
    starts = [0]
    logit_rows: list[int] = []
    width = max(len(s.pages) for s in sequences)
    for s in sequences:
        count = len(s.token_ids)
        token_ids += s.token_ids
        if s.parents is None:
            positions += range(s.cached, s.cached + count)
            parents += range(-1, count - 1)
        else:
            depths: list[int] = []
            for parent in s.parents:
                depths.append(0 if parent < 0 else depths[parent] + 1)
            positions += [s.cached + depth for depth in depths]
            parents += s.parents
        starts.append(starts[-1] + count)
        logit_rows += range(starts[-1] - s.keep_last, starts[-1])
    page_rows = [page for s in sequences for page in (*s.pages, *(0,) * (width - len(s.pages)))]
    cached = [s.cached for s in sequences]
    parts = (token_ids, positions, parents, starts, cached, page_rows, logit_rows)
    numbers = array(
        "i", chain.from_iterable(parts)
    )  # one tensor for all: creating a tensor costs as much as filling it
    tensors = torch.split_with_sizes(torch.frombuffer(numbers, dtype=torch.int32), [len(part) for part in parts])
    token_row, position_row, parent_row, start_row, cached_row, page_row, logit_row = tensors
    pages = page_row.view(len(sequences), width)
    return Batch(token_row, position_row, parent_row, start_row, cached_row, pages, logit_row)


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Facts about a loaded model."""

    name: str
    forward: str
    """The forward that runs it, e.g. 'native (avx512_bf16)', 'lean (torch)', 'transformers'."""
    vocab_size: int
    max_positions: int
    num_layers: int
    page_bytes: int  # memory of one KV page over all layers, in bytes
    weight_bytes: int
    eos_token_ids: tuple[int, ...]
    token_bytes: int = 0
    """Memory that a pass takes for each of its tokens, at most: activations and logits, in bytes."""
    device: str = "cpu"
    """Device of weights and KV pages, e.g. 'cpu', 'cuda:0'."""
    num_experts: int = 0  # experts in each layer of a mixture of experts, 0 for others
    computation: str = ""
    """Rounding, e.g. 'q4_1 weights, int8 activations'; empty if only the forward's dtype rounds."""
    invariant_by: str = ""
    """Construction that gives a row the same bits alone and in any company; empty if none does."""


class KVCache(Protocol):
    """KV pages of all layers. The page pool (`engine.kv.pages`) decides which page holds what."""

    @property
    def num_pages(self) -> int: ...

    def copy_page(self, source: int, target: int) -> None:
        """Copy one page over all layers (copy-on-write)."""

    def clear_page(self, page: int) -> None:
        """Fill one page with zeros over all layers."""

    def move(self, pages: Sequence[int], moves: Sequence[tuple[int, int]]) -> None:
        """Within one sequence's `pages`, copy slot `source` to slot `target` for each (source, target), in order.

        This compacts the accepted path of a tree: targets ascend and are never above their sources.
        """

    def views(self, page: int) -> Sequence[Tensor]:
        """Return all that is stored of a page."""


class TargetModel(Protocol):
    """A causal language model over paged KV."""

    @property
    def info(self) -> ModelInfo: ...

    def make_cache(self, num_pages: int) -> KVCache:
        """Allocate zeroed KV pages."""

    def forward(self, batch: Batch, cache: KVCache) -> Tensor:  # [L, vocab] float32
        """Write the K/V of all tokens of `batch` into `cache` and return the logits of `batch.logit_rows`."""


@runtime_checkable
class PlacedModel(Protocol):
    """A target, draft model or draft head whose pages lie one after the other, so that a cache can lie in another's."""

    def make_cache_in(self, cache: KVCache, first_page: int, num_pages: int) -> KVCache:
        """Return a cache in the memory that `cache`, of any such model, has from its page `first_page` on."""


@runtime_checkable
class ThreadedModel(TargetModel, Protocol):
    """A target model whose pass runs on threads of its own, which stay awake for what follows it."""

    @property
    def team(self) -> Team:
        """The threads, for kernels that share their work, one call at a time."""


@runtime_checkable
class FeatureModel(TargetModel, Protocol):
    """A target model that returns its hidden states, the input of draft heads."""

    def forward_features(self, batch: Batch, cache: KVCache, aux_layers: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Do `forward`; return logits [L, vocab] float32 and features [T, len(aux_layers) * hidden] bfloat16.

        Feature i of a token is the hidden state that enters layer `aux_layers[i]` (0-based); the number of layers
        stands for the output of the last one, before the final norm.
        """


@runtime_checkable
class ArgmaxModel(FeatureModel, Protocol):
    """A target model whose pass also finds the largest logits."""

    def forward_argmax(
        self, batch: Batch, cache: KVCache, aux_layers: Sequence[int]
    ) -> tuple[Tensor, Tensor, list[int]]:
        """Do `forward_features`, and also return the lowest id of each row's largest logit."""
