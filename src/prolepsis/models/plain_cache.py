"""KV pages as plain tensors, one pair a layer: the cache of the torch forwards."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from prolepsis.models.protocol import PAGE_SIZE


@dataclass(frozen=True, slots=True)
class LayerKV:
    """What one layer caches per token."""

    heads: int
    key_dim: int
    value_dim: int


class PlainCache:
    """Pages of keys and values; slot i of a sequence is token i % PAGE_SIZE of its page i // PAGE_SIZE."""

    def __init__(
        self,
        layers: Sequence[LayerKV],
        num_pages: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        scratch: bool = False,
    ) -> None:
        """Allocate zeroed pages; `scratch` adds one, numbered `num_pages`, that belongs to nobody."""
        self._num_pages = num_pages
        num_pages += scratch
        self.keys = [_pages(num_pages, layer.heads, layer.key_dim, dtype, device) for layer in layers]
        self.values = [_pages(num_pages, layer.heads, layer.value_dim, dtype, device) for layer in layers]

    @property
    def num_pages(self) -> int:
        return self._num_pages

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store [T, heads, dim] keys and values of one layer at flat `slots` ([T] int64: page * PAGE_SIZE + i)."""
        self.keys[layer].flatten(0, 1)[slots] = keys
        self.values[layer].flatten(0, 1)[slots] = values

    def read(self, layer: int, pages: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values of `pages` ([..., P] int64) as [..., P * PAGE_SIZE, heads, dim]."""
        return self.keys[layer][pages].flatten(-4, -3), self.values[layer][pages].flatten(-4, -3)

    def copy_page(self, source: int, target: int) -> None:
        """Copy one page over all layers."""
        for tensor in (*self.keys, *self.values):
            tensor[target] = tensor[source]

    def move(self, pages: Sequence[int], moves: Sequence[tuple[int, int]]) -> None:
        """Copy slots within one sequence (`KVCache.move`).

        All sources are read before any target is written; as targets ascend and never lie above their sources, that
        is the same as copying in order.
        """
        if not moves:
            return
        flat = [[pages[slot // PAGE_SIZE] * PAGE_SIZE + slot % PAGE_SIZE for slot in pair] for pair in moves]
        index = torch.tensor(flat, device=self.keys[0].device)
        for tensor in (*self.keys, *self.values):
            slots = tensor.flatten(0, 1)
            slots[index[:, 1]] = slots[index[:, 0]]


def page_bytes(layers: Sequence[LayerKV], dtype: torch.dtype) -> int:
    """Return the bytes of one page over all `layers`."""
    return sum(PAGE_SIZE * layer.heads * (layer.key_dim + layer.value_dim) for layer in layers) * dtype.itemsize


def _pages(num_pages: int, heads: int, dim: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.zeros(num_pages, PAGE_SIZE, heads, dim, dtype=dtype, device=device)
