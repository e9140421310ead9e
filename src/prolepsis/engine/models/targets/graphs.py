"""The lean forward on CUDA, replayed from captured graphs: one per bucket of sequences, rows per sequence and pages.

Legend: S sequences, N rows each, P pages each, L = P * PAGE_SIZE slots, all of the bucket (powers of two).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from prolepsis.core.page_size import PAGE_SIZE
from prolepsis.engine.models.files.checkpoint import Checkpoint
from prolepsis.engine.models.protocol import Batch, KVCache
from prolepsis.engine.models.targets.lean import LeanModel, after_attention, before_attention, scoring
from prolepsis.engine.models.targets.lean_shape import LeanShape
from prolepsis.engine.models.targets.paged_attention import PlainCache, attend, plan_attention

MAX_ROWS = 512
"""Larger steps (long prefill chunks) run without a graph: their time is spent in the kernels, not in launches."""
MAX_ROWS_PER_SEQUENCE = 32


@dataclass(frozen=True, slots=True)
class GraphShape:
    """Shape of a captured step."""

    sequences: int
    rows: int
    pages: int

    @classmethod
    def of(cls, batch: Batch) -> "GraphShape | None":
        """Return the smallest bucket that holds `batch`, or None if it is too large."""
        starts, cached = batch.starts.tolist(), batch.cached.tolist()
        rows = max(end - start for start, end in pairwise(starts))
        slots = max(c + end - start for c, (start, end) in zip(cached, pairwise(starts), strict=True))
        bucket = cls(_power(batch.num_sequences), _power(rows), _power(-(-slots // PAGE_SIZE)))
        if rows > MAX_ROWS_PER_SEQUENCE or bucket.sequences * bucket.rows > MAX_ROWS:
            return None
        return bucket


@dataclass(frozen=True, slots=True)
class StaticInputs:
    """Inputs of a captured step, at fixed addresses."""

    token_ids: Tensor  # [S * N] int64
    positions: Tensor  # [S * N] int64
    slots: Tensor  # [S * N] int64
    pages: Tensor  # [S, P] int64
    visible: Tensor  # [W, S, N, L] bool: for each window of the layers

    def copy(self, other: "StaticInputs") -> None:
        for name in ("token_ids", "positions", "slots", "pages", "visible"):
            getattr(self, name).copy_(getattr(other, name), non_blocking=True)

    def to(self, device: torch.device) -> "StaticInputs":
        moved = (t.to(device) for t in (self.token_ids, self.positions, self.slots, self.pages, self.visible))
        return StaticInputs(*moved)


def lay_out(
    batch: Batch, bucket: GraphShape, scratch_page: int, windows: Sequence[int | None]
) -> tuple[StaticInputs, Tensor]:
    """Pad `batch` to `bucket`; also return the positions of the logits to keep ([L] int64).

    Padding rows write to `scratch_page` and attend to one slot, so that their results are not NaN; they are never read.
    """
    size = bucket.sequences * bucket.rows
    inputs = StaticInputs(
        token_ids=torch.zeros(size, dtype=torch.int64),
        positions=torch.zeros(size, dtype=torch.int64),
        slots=torch.arange(size) % PAGE_SIZE + scratch_page * PAGE_SIZE,
        pages=torch.zeros(bucket.sequences, bucket.pages, dtype=torch.int64),
        visible=torch.zeros(len(windows), bucket.sequences, bucket.rows, bucket.pages * PAGE_SIZE, dtype=torch.bool),
    )
    inputs.visible[..., 0] = True
    plan = plan_attention(batch, torch.device("cpu"))
    place = torch.empty(batch.num_tokens, dtype=torch.int64)
    for s, sequence in enumerate(plan.sequences):
        rows = sequence.end - sequence.start
        place[sequence.start : sequence.end] = torch.arange(rows) + s * bucket.rows
        inputs.pages[s, : len(sequence.pages)] = sequence.pages
        for w, window in enumerate(windows):
            inputs.visible[w, s, :rows, : sequence.visible.shape[1]] = plan.mask(s, window)
    inputs.token_ids[place] = batch.token_ids.long()
    inputs.positions[place] = batch.positions.long()
    inputs.slots[place] = plan.slots
    return inputs, place[batch.logit_rows.long()]


class GraphedLean(LeanModel):
    """A lean model on CUDA; a bucket's first step is captured, later ones are replayed."""

    def __init__(self, checkpoint: Checkpoint, shape: LeanShape, name: str, device: torch.device) -> None:
        super().__init__(checkpoint, shape, name, device)
        self.windows = tuple(dict.fromkeys(layer.window for layer in shape.layers))
        self._graphs: WeakKeyDictionary[PlainCache, dict[GraphShape, CapturedStep]] = WeakKeyDictionary()
        self.info = replace(self.info, forward="lean (torch, CUDA graphs)")

    def make_cache(self, num_pages: int) -> PlainCache:
        """Allocate zeroed KV pages and one more, to which padding rows write."""
        return PlainCache(self._kv, num_pages, self.dtype, self.device, scratch=True)

    def forward(self, batch: Batch, cache: KVCache) -> Tensor:  # [L, vocab] float32
        assert isinstance(cache, PlainCache), "a cache made by this model"
        bucket = GraphShape.of(batch)
        if bucket is None:
            return super().forward(batch, cache)
        inputs, rows = lay_out(batch, bucket, cache.num_pages, self.windows)
        graphs = self._graphs.setdefault(cache, {})
        captured = graphs.get(bucket)
        if captured is None:
            captured = graphs[bucket] = self._capture(inputs.to(self.device), cache)
        captured.inputs.copy(inputs)
        captured.graph.replay()
        logits = captured.logits
        return logits[rows.to(self.device, non_blocking=True)]

    def _capture(self, inputs: StaticInputs, cache: PlainCache) -> "CapturedStep":
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # kernels and workspaces must be loaded before the capture
            for _ in range(2):
                self.static_step(inputs, cache)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            logits = self.static_step(inputs, cache)
        return CapturedStep(graph, inputs, logits)

    @torch.no_grad()
    def static_step(self, inputs: StaticInputs, cache: PlainCache) -> Tensor:  # [S * N, vocab] float32
        """Run the forward over padded inputs: no shape and no branch depends on a value, as a capture requires."""
        _, sequences, rows, _ = inputs.visible.shape
        rotaries = self.rotaries(inputs.positions)
        x = self.embed(inputs.token_ids)
        for i, layer in enumerate(self.layers):
            q, k, v = before_attention(x, layer, rotaries, self.shape)
            cache.write(i, inputs.slots, k, v)
            keys, values = cache.read(i, inputs.pages)
            query = q.unflatten(0, (sequences, rows))  # type: ignore[no-untyped-call]
            visible = inputs.visible[self.windows.index(layer.shape.window)]
            mixed = attend(query, keys.float(), values.float(), visible, scoring(layer.shape))
            x = after_attention(x, mixed.flatten(0, 1).to(x.dtype), layer, self.shape)
        return self.logits(x)


@dataclass(frozen=True, slots=True)
class CapturedStep:
    """A graph and the tensors it reads and writes."""

    graph: torch.cuda.CUDAGraph
    inputs: StaticInputs
    logits: Tensor  # [S * N, vocab] float32, overwritten by the next replay


def _power(value: int) -> int:
    return 1 << (value - 1).bit_length()
