"""Weights of a model that a `LeanShape` describes, read from a checkpoint.

Legend: h query heads, k key/value heads, d head dimension.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, Self, TypeVar

import torch
from torch import Tensor

from prolepsis.core.errors import ModelLoadError
from prolepsis.engine.models.files.checkpoint import TIED_HEAD, Checkpoint, unread_tensors
from prolepsis.engine.models.targets.lean_shape import LayerShape, LeanShape


class Rows(Protocol):
    """A matrix, in any form that a forward reads."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __getitem__(self, rows: slice, /) -> Self: ...


M = TypeVar("M", bound=Rows)


@dataclass(frozen=True, slots=True)
class LayerParts(Generic[M]):
    """One layer: what it computes, and its weights. Norms that it lacks are None.

    Projections with the same input are parts as they stand in the files, or one matrix with the rows of all (`fused`).
    """

    shape: LayerShape
    qkv: tuple[M, ...]  # [heads * d, hidden] of q, k and v, or all [(h + 2k) * d, hidden]
    o: M  # [hidden, h * d]
    gate_up: tuple[M, ...]  # [intermediate, hidden] of gate and up, or both [2 * intermediate, hidden]
    down: M  # [hidden, intermediate]
    before_attention: Tensor | None  # [hidden], as all norms except query and key norms
    before_feed_forward: Tensor | None
    after_attention: Tensor | None = None
    after_feed_forward: Tensor | None = None
    qkv_bias: Tensor | None = None  # [(h + 2k) * d]
    q_norm: Tensor | None = None  # [d], or [h * d] for all heads of a token at once
    k_norm: Tensor | None = None  # [d] or [k * d]


@dataclass(frozen=True, slots=True)
class EndParts(Generic[M]):
    """Weights before the first and after the last layer."""

    embedding: M  # [vocab, hidden]
    final_norm: Tensor  # [hidden]
    head: M | None  # [vocab, hidden]; None: tied to the embedding


class WeightReader(Generic[M]):
    """Reads a checkpoint's layers and ends, matrices as `read` returns them.

    Raises `ModelLoadError` for a missing tensor, or a shape that differs from the configuration.
    """

    def __init__(self, checkpoint: Checkpoint, shape: LeanShape, read: Callable[[str], M]) -> None:
        self._checkpoint, self._shape, self._read = checkpoint, shape, read

    def layers(self) -> Iterator[LayerParts[M]]:
        """Yield the layers' weights one by one, projections as they stand in the files."""
        return (self._layer(i) for i in range(len(self._shape.layers)))

    def ends(self) -> EndParts[M]:
        shape = self._shape
        return EndParts(
            embedding=self.matrix("model.embed_tokens", shape.vocab, shape.hidden),
            final_norm=self._norm("model.norm", shape.hidden),
            head=None if shape.tied else self.matrix("lm_head", shape.vocab, shape.hidden),
        )

    def _layer(self, i: int) -> LayerParts[M]:
        shape, layer = self._shape, f"model.layers.{i}"
        hidden, q_rows, kv_rows = shape.hidden, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        attention, feed_forward = f"{layer}.self_attn", f"{layer}.mlp"
        projections = [(f"{attention}.{p}_proj", rows) for p, rows in (("q", q_rows), ("k", kv_rows), ("v", kv_rows))]
        if shape.fused:
            qkv = self._split(f"{attention}.qkv_proj", hidden, q_rows, kv_rows, kv_rows)
            gate_up = self._split(f"{feed_forward}.gate_up_proj", hidden, shape.intermediate, shape.intermediate)
        else:
            qkv = [self.matrix(name, rows, hidden) for name, rows in projections]
            gate_up = [self.matrix(f"{feed_forward}.{p}_proj", shape.intermediate, hidden) for p in ("gate", "up")]
        biases = [self.vector(f"{name}.bias", rows) for name, rows in projections] if shape.qkv_bias else []

        def norm(name: str | None, size: int = hidden) -> Tensor | None:
            return None if name is None else self._norm(f"{layer}.{name}", size)

        def query_norm(name: str, rows: int) -> Tensor | None:
            size = shape.head_dim if shape.query_norm == "head" else rows
            return norm(f"self_attn.{name}", size) if shape.query_norm else None

        return LayerParts(
            shape=shape.layers[i],
            qkv=tuple(qkv),
            qkv_bias=torch.cat(biases) if biases else None,
            o=self.matrix(f"{attention}.o_proj", hidden, q_rows),
            gate_up=tuple(gate_up),
            down=self.matrix(f"{feed_forward}.down_proj", hidden, shape.intermediate),
            before_attention=norm(shape.norms.before_attention),
            after_attention=norm(shape.norms.after_attention),
            before_feed_forward=norm(shape.norms.before_feed_forward),
            after_feed_forward=norm(shape.norms.after_feed_forward),
            q_norm=query_norm("q_norm", q_rows),
            k_norm=query_norm("k_norm", kv_rows),
        )

    def matrix(self, name: str, *sizes: int) -> M:
        matrix = self._read(f"{name}.weight")
        self._check(f"{name}.weight", matrix.shape, sizes)
        return matrix

    def vector(self, name: str, size: int) -> Tensor:
        vector = self._checkpoint.tensor(name)
        self._check(name, vector.shape, (size,))
        return vector

    def _split(self, name: str, depth: int, *rows: int) -> list[M]:
        """Return the parts of a fused matrix that has these numbers of rows."""
        whole = self.matrix(name, sum(rows), depth)
        ends = [sum(rows[: i + 1]) for i in range(len(rows))]
        return [whole[end - count : end] for count, end in zip(rows, ends, strict=True)]

    def _norm(self, name: str, size: int) -> Tensor:
        """Return what a norm multiplies by: in float32 where it is an offset from one, so that it keeps its digits."""
        weight = self.vector(f"{name}.weight", size)
        return weight.float() + self._shape.norm_offset if self._shape.norm_offset else weight

    def _check(self, name: str, shape: tuple[int, ...], sizes: tuple[int, ...]) -> None:
        if tuple(shape) != sizes:
            raise ModelLoadError(f"{self._checkpoint.source}: {name} is {list(shape)}; its config says {list(sizes)}")


class _NameReader(WeightReader[Tensor]):
    """Notes the tensors that are asked for, in place of reading them."""

    def __init__(self, checkpoint: Checkpoint, shape: LeanShape) -> None:
        super().__init__(checkpoint, shape, checkpoint.tensor)
        self.names: set[str] = set()

    def matrix(self, name: str, *sizes: int) -> Tensor:
        return self.vector(f"{name}.weight", 0)

    def vector(self, name: str, size: int) -> Tensor:
        self.names.add(name)
        return torch.empty(0)  # not of these sizes on the meta device, whose operators import torch's compiler: 2 s


def check_names(checkpoint: Checkpoint, shape: LeanShape) -> None:
    """Raise `ModelLoadError` for a tensor that is missing or that is not read, before any is loaded.

    MTP layers are left to `heads.foreign`.
    """
    reader = _NameReader(checkpoint, shape)
    reader.ends()
    for _ in reader.layers():
        pass
    for name in sorted(reader.names):
        if name not in checkpoint.tensors:
            raise ModelLoadError(f"{checkpoint.source} has no tensor {name!r}")
    behind = f"model.layers.{len(shape.layers)}."
    heads = ("mtp.", behind) if f"{behind}eh_proj.weight" in checkpoint.tensors else ("mtp.",)  # MTP layers
    # old files hold the frequencies of rotations, which follow from the configuration
    others = (n for n in checkpoint.tensors if not n.startswith(heads) and not n.endswith("rotary_emb.inv_freq"))
    unread = sorted(n for n in others if n not in reader.names)
    if shape.tied and TIED_HEAD in unread:
        unread.remove(TIED_HEAD)  # `open_checkpoint` has compared it with the embedding
    if unread:
        raise ModelLoadError(f"{checkpoint.source}: {unread_tensors(unread, checkpoint.config.model_type)}")


def read_ends(checkpoint: Checkpoint, shape: LeanShape) -> EndParts[Tensor]:
    """Return the weights outside the layers as tensors; raises `ModelLoadError` as `WeightReader`."""
    return WeightReader(checkpoint, shape, checkpoint.tensor).ends()


def output_rows(ends: EndParts[Tensor], ids: Tensor) -> Tensor:  # [n, hidden]
    rows = ends.embedding if ends.head is None else ends.head
    return rows[ids.to(rows.device)]
