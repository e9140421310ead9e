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
    """One layer: what it computes, and its weights as they stand in the files. Norms that it lacks are None."""

    shape: LayerShape
    qkv: tuple[M, M, M]  # each [heads * d, hidden]
    qkv_bias: Tensor | None  # [(h + 2k) * d]
    o: M  # [hidden, h * d]
    gate_up: tuple[M, M]  # each [intermediate, hidden]
    down: M  # [hidden, intermediate]
    before_attention: Tensor | None  # [hidden], as all norms except query and key norms
    after_attention: Tensor | None
    before_feed_forward: Tensor | None
    after_feed_forward: Tensor | None
    q_norm: Tensor | None  # [d], or [h * d] for all heads of a token at once
    k_norm: Tensor | None  # [d] or [k * d]


@dataclass(frozen=True, slots=True)
class LeanLayer:
    """One layer as `LayerParts`; projections with the same input are fused."""

    shape: LayerShape
    qkv: Tensor  # [(h + 2k) * d, hidden]: q rows, then k rows, then v rows
    qkv_bias: Tensor | None  # [(h + 2k) * d]
    o: Tensor  # [hidden, h * d]
    gate_up: Tensor  # [2 * intermediate, hidden]: gate rows, then up rows
    down: Tensor  # [hidden, intermediate]
    before_attention: Tensor | None
    after_attention: Tensor | None
    before_feed_forward: Tensor | None
    after_feed_forward: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None


class WeightReader(Generic[M]):
    """Reads tensors of a checkpoint by name, matrices as `read` returns them, and checks their sizes."""

    def __init__(self, checkpoint: Checkpoint, shape: LeanShape, read: Callable[[str], M]) -> None:
        self._checkpoint, self._shape, self._read = checkpoint, shape, read

    def matrix(self, name: str, *sizes: int) -> M:
        """Return matrix `name`; raises `ModelLoadError` if it is missing or not of these sizes."""
        found = self._read(f"{name}.weight")
        self._check(f"{name}.weight", found.shape, sizes)
        return found

    def split(self, name: str, depth: int, *rows: int) -> list[M]:
        """Return the parts of a fused matrix that has these numbers of rows."""
        whole = self.matrix(name, sum(rows), depth)
        ends = [sum(rows[: i + 1]) for i in range(len(rows))]
        return [whole[end - count : end] for count, end in zip(rows, ends, strict=True)]

    def vector(self, name: str, size: int) -> Tensor:
        """Return vector `name`; raises `ModelLoadError` as `matrix`."""
        found = self._checkpoint.tensor(name)
        self._check(name, found.shape, (size,))
        return found

    def norm(self, name: str, size: int) -> Tensor:
        """Return what a norm multiplies by: in float32 where it is an offset from one, so that it keeps its digits."""
        weight = self.vector(f"{name}.weight", size)
        return weight.float() + self._shape.norm_offset if self._shape.norm_offset else weight

    def _check(self, name: str, found: tuple[int, ...], sizes: tuple[int, ...]) -> None:
        if tuple(found) != sizes:
            raise ModelLoadError(f"{self._checkpoint.source}: {name} is {list(found)}; its config says {list(sizes)}")


class _Sizes(WeightReader[Tensor]):
    """Notes the tensors that are asked for, in place of reading them."""

    def __init__(self, checkpoint: Checkpoint, shape: LeanShape) -> None:
        super().__init__(checkpoint, shape, checkpoint.tensor)
        self.names: dict[str, tuple[int, ...]] = {}

    def matrix(self, name: str, *sizes: int) -> Tensor:
        return self._noted(f"{name}.weight", sizes)

    def vector(self, name: str, size: int) -> Tensor:
        return self._noted(name, (size,))

    def _noted(self, name: str, sizes: tuple[int, ...]) -> Tensor:
        self.names[name] = sizes
        return torch.empty(0)  # not of these sizes on the meta device, whose operators import torch's compiler: 2 s


def check_names(checkpoint: Checkpoint, shape: LeanShape) -> None:
    """Raise `ModelLoadError` for a tensor that is missing or that is not read, before any is loaded."""
    sizes = _Sizes(checkpoint, shape)
    for i in range(len(shape.layers)):
        _layer(sizes, shape, i)
    _ends(sizes, shape)
    for name in sizes.names:
        if name not in checkpoint.tensors:
            raise ModelLoadError(f"{checkpoint.source} has no tensor {name!r}")
    unread = sorted(name for name in checkpoint.tensors if name not in sizes.names and not _is_derived(name))
    if shape.tied and TIED_HEAD in unread:
        unread.remove(TIED_HEAD)  # `open_checkpoint` has compared it with the embedding
    if unread:
        raise ModelLoadError(f"{checkpoint.source}: {unread_tensors(unread, checkpoint.config.model_type)}")


def _is_derived(name: str) -> bool:
    """Return whether a tensor follows from the configuration, as old files hold the frequencies of rotations."""
    return name.endswith("rotary_emb.inv_freq")


def layer_parts(checkpoint: Checkpoint, shape: LeanShape, read: Callable[[str], M]) -> Iterator[LayerParts[M]]:
    """Yield the layers' weights one by one, matrices as `read` returns them.

    Raises `ModelLoadError` for a missing tensor, or a shape that differs from the configuration.
    """
    reader = WeightReader(checkpoint, shape, read)
    for i in range(len(shape.layers)):
        yield _layer(reader, shape, i)


def _layer(reader: WeightReader[M], shape: LeanShape, i: int) -> LayerParts[M]:
    hidden, q_rows, kv_rows = shape.hidden, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    layer = f"model.layers.{i}"
    attention, feed_forward = f"{layer}.self_attn", f"{layer}.mlp"
    projections = [(f"{attention}.{p}_proj", rows) for p, rows in (("q", q_rows), ("k", kv_rows), ("v", kv_rows))]
    if shape.fused:
        q, k, v = reader.split(f"{attention}.qkv_proj", hidden, q_rows, kv_rows, kv_rows)
        gate, up = reader.split(f"{feed_forward}.gate_up_proj", hidden, shape.intermediate, shape.intermediate)
    else:
        q, k, v = (reader.matrix(name, rows, hidden) for name, rows in projections)
        gate, up = (reader.matrix(f"{feed_forward}.{p}_proj", shape.intermediate, hidden) for p in ("gate", "up"))

    def norm(name: str | None, size: int = hidden) -> Tensor | None:
        return None if name is None else reader.norm(f"{layer}.{name}", size)

    def query_norm(name: str, rows: int) -> Tensor | None:
        return None if shape.query_norm is None else norm(name, shape.head_dim if shape.query_norm == "head" else rows)

    biases = [reader.vector(f"{name}.bias", rows) for name, rows in projections] if shape.qkv_bias else []
    return LayerParts(
        shape=shape.layers[i],
        qkv=(q, k, v),
        qkv_bias=torch.cat(biases) if biases else None,
        o=reader.matrix(f"{attention}.o_proj", hidden, q_rows),
        gate_up=(gate, up),
        down=reader.matrix(f"{feed_forward}.down_proj", hidden, shape.intermediate),
        before_attention=norm(shape.norms.before_attention),
        after_attention=norm(shape.norms.after_attention),
        before_feed_forward=norm(shape.norms.before_feed_forward),
        after_feed_forward=norm(shape.norms.after_feed_forward),
        q_norm=query_norm("self_attn.q_norm", q_rows),
        k_norm=query_norm("self_attn.k_norm", kv_rows),
    )


def lean_layers(checkpoint: Checkpoint, shape: LeanShape) -> Iterator[LeanLayer]:
    """Yield the layers' weights, projections of the same input fused; raises `ModelLoadError` as `layer_parts`."""
    for parts in layer_parts(checkpoint, shape, checkpoint.tensor):
        yield LeanLayer(
            shape=parts.shape,
            qkv=torch.cat(parts.qkv),
            qkv_bias=parts.qkv_bias,
            o=parts.o,
            gate_up=torch.cat(parts.gate_up),
            down=parts.down,
            before_attention=parts.before_attention,
            after_attention=parts.after_attention,
            before_feed_forward=parts.before_feed_forward,
            after_feed_forward=parts.after_feed_forward,
            q_norm=parts.q_norm,
            k_norm=parts.k_norm,
        )


@dataclass(frozen=True, slots=True)
class EndParts(Generic[M]):
    """Weights before the first and after the last layer."""

    embedding: M  # [vocab, hidden]
    final_norm: Tensor  # [hidden]
    head: M | None  # [vocab, hidden]; None: tied to the embedding


def end_parts(checkpoint: Checkpoint, shape: LeanShape, read: Callable[[str], M]) -> EndParts[M]:
    """Return the weights outside the layers; raises `ModelLoadError` as `layer_parts` does."""
    return _ends(WeightReader(checkpoint, shape, read), shape)


def _ends(reader: WeightReader[M], shape: LeanShape) -> EndParts[M]:
    return EndParts(
        embedding=reader.matrix("model.embed_tokens", shape.vocab, shape.hidden),
        final_norm=reader.norm("model.norm", shape.hidden),
        head=None if shape.tied else reader.matrix("lm_head", shape.vocab, shape.hidden),
    )


def output_rows(ends: EndParts[Tensor], ids: Tensor) -> Tensor:  # [n, hidden]
    """Return rows of the output head, `ids` [n] int64."""
    rows = ends.embedding if ends.head is None else ends.head
    return rows[ids.to(rows.device)]


def lean_ends(checkpoint: Checkpoint, shape: LeanShape) -> EndParts[Tensor]:
    """Return the weights outside the layers as tensors; raises `ModelLoadError` as `layer_parts` does."""
    return end_parts(checkpoint, shape, checkpoint.tensor)
