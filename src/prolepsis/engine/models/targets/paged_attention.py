"""Attention over KV pages in torch: the pages as plain tensors, a pair for each layer, and grouped-query attention."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention
from torch import Tensor

from prolepsis.core.page_size import PAGE_SIZE
from prolepsis.engine.models.protocol import Batch


@dataclass(frozen=True, slots=True)
class LayerKV:
    """The size of one layer's cache entry for a token."""

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
        """Allocate zeroed pages; `scratch` adds one, numbered `num_pages`, for padding."""
        self.num_pages = num_pages
        num_pages += scratch
        self.keys = [_pages(num_pages, layer.heads, layer.key_dim, dtype, device) for layer in layers]
        self.values = [_pages(num_pages, layer.heads, layer.value_dim, dtype, device) for layer in layers]

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store [T, heads, dim] keys and values of one layer at flat `slots` ([T] int64: page * PAGE_SIZE + i).

        A row that does not see a slot weighs its values by 0, which makes no number of what is none: such values are
        stored as 0, and the key, whose scores only rows that see it use, is made none in their place.
        """
        values = values.to(self.values[layer].dtype)
        whole = values.isfinite().all(-1, keepdim=True)
        self.keys[layer].flatten(0, 1)[slots] = keys.to(self.keys[layer].dtype).where(whole, torch.nan)
        self.values[layer].flatten(0, 1)[slots] = values.where(whole, 0.0)

    def read(self, layer: int, pages: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values of `pages` ([..., P] int64) as [..., P * PAGE_SIZE, heads, dim]."""
        return self.keys[layer][pages].flatten(-4, -3), self.values[layer][pages].flatten(-4, -3)

    def copy_page(self, source: int, target: int) -> None:
        for tensor in (*self.keys, *self.values):
            tensor[target] = tensor[source]

    def clear_page(self, page: int) -> None:
        for tensor in (*self.keys, *self.values):
            tensor[page] = 0

    def views(self, page: int) -> Sequence[Tensor]:
        return [tensor[page] for tensor in (*self.keys, *self.values)]

    def move(self, pages: Sequence[int], moves: Sequence[tuple[int, int]]) -> None:
        """Copy slots within one sequence (`KVCache.move`).

        All sources are read before any target is written. Targets ascend and are never above their sources, so the
        result is the same as copying in order.
        """
        if not moves:
            return
        flat = [[pages[slot // PAGE_SIZE] * PAGE_SIZE + slot % PAGE_SIZE for slot in pair] for pair in moves]
        index = torch.tensor(flat, device=self.keys[0].device)
        for tensor in (*self.keys, *self.values):
            slots = tensor.flatten(0, 1)
            slots[index[:, 1]] = slots[index[:, 0]]


def page_bytes(layers: Sequence[LayerKV], dtype: torch.dtype) -> int:
    return sum(PAGE_SIZE * layer.heads * (layer.key_dim + layer.value_dim) for layer in layers) * dtype.itemsize


def _pages(num_pages: int, heads: int, dim: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return zeroed pages; on the CPU the system gives each its memory when it is first used."""
    size = (num_pages, PAGE_SIZE, heads, dim)
    if device.type != "cpu":
        return torch.zeros(size, dtype=dtype, device=device)
    lazy = np.zeros(math.prod(size) * dtype.itemsize, np.uint8)  # torch.zeros writes the zeros
    return torch.from_numpy(lazy).view(dtype).view(size)


@dataclass(frozen=True, slots=True)
class Scoring:
    """Parameters with which a layer turns dot products into probabilities."""

    scale: float
    window: int | None = None  # a row attends to keys at most window - 1 positions back; None: to all
    softcap: float | None = None
    sinks: Tensor | None = None  # [h]: a logit per head that takes probability without adding a value


@dataclass(frozen=True, slots=True)
class SequencePlan:
    """One sequence's rows and the slots that they attend to."""

    start: int
    end: int
    pages: Tensor  # [P] int64, only the pages in use
    visible: Tensor  # [n, L] bool: context and ancestors
    distance: Tensor  # [n, L] int32: positions from key back to row
    parts: tuple[tuple[int, int, slice | Tensor], ...]
    """First and last row (exclusive) of each product, and the slots of its keys."""


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """The part of attention that all layers of a step share."""

    slots: Tensor  # [T] int64, flat cache slots of the new tokens
    sequences: tuple[SequencePlan, ...]
    windowed: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    """Masks by (sequence, window), computed for the first layer with that window."""

    def mask(self, sequence: int, window: int | None) -> Tensor:
        plan = self.sequences[sequence]
        if window is None:
            return plan.visible
        key = (sequence, window)
        if key not in self.windowed:
            self.windowed[key] = plan.visible & (plan.distance < window)
        return self.windowed[key]


def plan_attention(batch: Batch, device: torch.device) -> AttentionPlan:
    """Prepare `batch` (on the CPU) for attention on `device`."""
    starts, cached = batch.starts.tolist(), batch.cached.tolist()
    slots, sequences = [], []
    for s in range(batch.num_sequences):
        start, end = starts[s], starts[s + 1]
        length = cached[s] + end - start
        pages = batch.pages[s, : -(-length // PAGE_SIZE)].long()
        new = torch.arange(cached[s], length)
        slots.append(pages[new // PAGE_SIZE] * PAGE_SIZE + new % PAGE_SIZE)
        visible = torch.zeros(end - start, len(pages) * PAGE_SIZE, dtype=torch.bool)
        visible[:, : cached[s]] = True
        visible[:, cached[s] : length] = ancestors(batch.parents[start:end])
        keys = torch.arange(len(pages) * PAGE_SIZE, dtype=torch.int32)
        keys[cached[s] : length] = batch.positions[start:end]
        distance = batch.positions[start:end, None] - keys
        parts = tuple(_parts(visible, cached[s], batch.parents[start:end], device))
        sequences.append(SequencePlan(start, end, pages.to(device), visible.to(device), distance.to(device), parts))
    return AttentionPlan(torch.cat(slots).to(device), tuple(sequences))


def _parts(
    visible: Tensor, cached: int, parents: Tensor, device: torch.device
) -> Iterator[tuple[int, int, slice | Tensor]]:
    """Yield `SequencePlan.parts` for [n, L] `visible`.

    A row of a tree takes the slots of its path in order of position, then hidden ones up to whole pages. Rows of a
    chain take the pages up to their own.
    """
    rows = len(visible)
    if not _is_chain(parents):
        for row, seen in enumerate(visible):
            path = seen.nonzero()[:, 0]
            hidden = (~seen).nonzero()[: -len(path) % PAGE_SIZE, 0]
            yield row, row + 1, torch.cat([path, hidden]).to(device)
        return
    first = 0
    while first < rows:
        in_page = PAGE_SIZE - (cached + first) % PAGE_SIZE
        last = min(first + in_page, rows)
        yield first, last, slice(0, cached + first + in_page)
        first = last


def _is_chain(parents: Tensor) -> bool:
    return torch.equal(parents, torch.arange(-1, len(parents) - 1, dtype=parents.dtype))


def ancestors(parents: Tensor) -> Tensor:
    """Return [n, n] bool: row i sees row j if j is i or an ancestor of i; `parents` as in `Batch`."""
    rows = len(parents)
    if _is_chain(parents):
        return torch.ones(rows, rows, dtype=torch.bool).tril()
    seen = torch.eye(rows, dtype=torch.bool)
    for row, parent in enumerate(parents.tolist()):
        if parent >= 0:
            seen[row] |= seen[parent]
    return seen


FEWEST_ROWS = 16
"""Rows of a product on the CPU, at least: with fewer, torch's libraries take kernels that add in another order."""


def enough_rows(x: Tensor) -> Tensor:
    """Return `x` [..., rows, in], on the CPU with rows of zeros after its own up to `FEWEST_ROWS`."""
    missing = FEWEST_ROWS - x.shape[-2]
    return F.pad(x, (0, 0, 0, missing)) if missing > 0 and x.device.type == "cpu" else x


def paged_attention(query: Tensor, cache: PlainCache, layer: int, plan: AttentionPlan, scoring: Scoring) -> Tensor:
    """Attend with `query` ([T, h, d]) to the pages of `layer`, which hold the step's own keys already.

    Returns [T, h, value_dim] in the query's dtype; products and softmax run in float32. A sum may change with the
    number and the places of its terms, so rows of drafts take the keys that they would take if decoded alone.
    """
    outputs = []
    for s, sequence in enumerate(plan.sequences):
        keys, values = cache.read(layer, sequence.pages)
        keys, values = keys.float()[None], values.float()[None]
        mask = plan.mask(s, scoring.window)
        for first, last, seen in sequence.parts:
            rows = query[None, sequence.start + first : sequence.start + last]
            visible = mask[None, first:last, seen]
            outputs.append(attend(rows, keys[:, seen], values[:, seen], visible, scoring)[0])
    return torch.cat(outputs).to(query.dtype)


def attend(query: Tensor, keys: Tensor, values: Tensor, visible: Tensor, scoring: Scoring) -> Tensor:
    """Grouped-query attention in float32, shapes [S, n, h, d], [S, L, k, d], [S, L, k, dv], [S, n, L] -> [S, n, h, dv].

    Query heads of one group share their key/value head and are rows of one product, so keys are never repeated.
    """
    s, n, h, d = query.shape
    k = keys.shape[2]
    grouped = query.float().view(s, n, k, h // k, d).permute(0, 2, 3, 1, 4).reshape(s, k, h // k * n, d)
    scores = torch.matmul(enough_rows(grouped), keys.permute(0, 2, 3, 1))[:, :, : grouped.shape[2]] * scoring.scale
    if scoring.softcap is not None:
        scores = torch.tanh(scores / scoring.softcap) * scoring.softcap
    scores = scores.view(s, k, h // k, n, -1).masked_fill(~visible[:, None, None], -torch.inf)
    if scoring.sinks is not None:
        sink = scoring.sinks.float().view(1, k, h // k, 1, 1).expand(*scores.shape[:-1], 1)
        weights = torch.softmax(torch.cat([scores, sink], dim=-1), dim=-1)[..., :-1]
    else:
        weights = torch.softmax(scores, dim=-1)
    mixed = torch.matmul(enough_rows(weights.flatten(2, 3)), values.transpose(1, 2))[:, :, : grouped.shape[2]]
    return mixed.reshape(s, k, h // k, n, -1).permute(0, 3, 1, 2, 4).reshape(s, n, h, -1)
