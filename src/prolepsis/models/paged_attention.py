"""Attention over paged KV: each sequence's keys and values are read once for all its rows of a step.

Legend: T tokens of the step, S sequences, n rows of a sequence, h query heads, k key/value heads, d head dimension,
L slots of a sequence's pages (a multiple of PAGE_SIZE).
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from prolepsis.models.batch import Batch
from prolepsis.models.plain_cache import PlainCache
from prolepsis.models.protocol import PAGE_SIZE

ROWS_AT_ONCE = 128
"""Query rows of one score matrix: bounds its memory in a long prefill chunk."""


@dataclass(frozen=True, slots=True)
class Scoring:
    """How a layer turns products into probabilities."""

    scale: float
    window: int | None = None
    """A row sees keys at most window - 1 positions back; None: all."""
    softcap: float | None = None
    sinks: Tensor | None = None  # [h]: a logit per head that takes probability and gives no value


@dataclass(frozen=True, slots=True)
class SequencePlan:
    """One sequence's rows and what they may see."""

    start: int
    end: int
    pages: Tensor  # [P] int64, only those in use
    visible: Tensor  # [n, L] bool: context and ancestors
    distance: Tensor  # [n, L] int32: positions from key back to row


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """What every layer of one step shares."""

    slots: Tensor  # [T] int64, flat cache slots of the new tokens
    sequences: tuple[SequencePlan, ...]
    windowed: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    """Masks by (sequence, window), made when the first layer with that window asks."""

    def mask(self, sequence: int, window: int | None) -> Tensor:
        """Return the [n, L] bool mask of `sequence` under `window`."""
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
        sequences.append(SequencePlan(start, end, pages.to(device), visible.to(device), distance.to(device)))
    return AttentionPlan(torch.cat(slots).to(device), tuple(sequences))


def ancestors(parents: Tensor) -> Tensor:
    """Return [n, n] bool: row i sees row j if j is i or an ancestor of i; `parents` as in `Batch`."""
    rows = len(parents)
    if torch.equal(parents, torch.arange(-1, rows - 1, dtype=parents.dtype)):
        return torch.ones(rows, rows, dtype=torch.bool).tril()
    seen = torch.eye(rows, dtype=torch.bool)
    for row, parent in enumerate(parents.tolist()):
        if parent >= 0:
            seen[row] |= seen[parent]
    return seen


def paged_attention(query: Tensor, cache: PlainCache, layer: int, plan: AttentionPlan, scoring: Scoring) -> Tensor:
    """Attend with `query` ([T, h, d]) to the pages of `layer`, which hold the step's own keys already.

    Returns [T, h, value_dim] in the query's dtype; products and softmax run in float32.
    """
    outputs = []
    for s, sequence in enumerate(plan.sequences):
        keys, values = cache.read(layer, sequence.pages)
        keys, values = keys.float()[None], values.float()[None]
        mask = plan.mask(s, scoring.window)
        for first in range(sequence.start, sequence.end, ROWS_AT_ONCE):
            last = min(first + ROWS_AT_ONCE, sequence.end)
            rows = mask[None, first - sequence.start : last - sequence.start]
            outputs.append(attend(query[None, first:last], keys, values, rows, scoring)[0])
    return torch.cat(outputs).to(query.dtype)


def attend(query: Tensor, keys: Tensor, values: Tensor, visible: Tensor, scoring: Scoring) -> Tensor:
    """Grouped-query attention in float32, shapes [S, n, h, d], [S, L, k, d], [S, L, k, dv], [S, n, L] -> [S, n, h, dv].

    Query heads of one group share their key/value head and are rows of one product, so keys are never repeated.
    """
    s, n, h, d = query.shape
    k = keys.shape[2]
    grouped = query.float().view(s, n, k, h // k, d).permute(0, 2, 3, 1, 4).reshape(s, k, h // k * n, d)
    scores = torch.matmul(grouped, keys.permute(0, 2, 3, 1)) * scoring.scale
    if scoring.softcap is not None:
        scores = torch.tanh(scores / scoring.softcap) * scoring.softcap
    scores = scores.view(s, k, h // k, n, -1).masked_fill(~visible[:, None, None], -torch.inf)
    weights = _softmax(scores, scoring.sinks)
    mixed = torch.matmul(weights.flatten(2, 3), values.transpose(1, 2))
    return mixed.view(s, k, h // k, n, -1).permute(0, 3, 1, 2, 4).reshape(s, n, h, -1)


def _softmax(scores: Tensor, sinks: Tensor | None) -> Tensor:  # [S, k, g, n, L] float32
    if sinks is None:
        return torch.softmax(scores, dim=-1)
    sink = sinks.float().view(1, scores.shape[1], scores.shape[2], 1, 1).expand(*scores.shape[:-1], 1)
    return torch.softmax(torch.cat([scores, sink], dim=-1), dim=-1)[..., :-1]
