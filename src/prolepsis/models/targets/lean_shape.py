"""Shape and fused weights of the Llama-shaped family: Llama, Mistral without a window, Qwen2 and Qwen3.

Legend: h query heads, k key/value heads, d head dimension.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from prolepsis.core.errors import ModelLoadError
from prolepsis.models.files.rope import ROPE_TYPES, rope_frequencies
from prolepsis.models.files.weights import Checkpoint, Config

FAMILY = ("llama", "mistral", "qwen2", "qwen3")


@dataclass(frozen=True, slots=True)
class LeanShape:
    """The geometry of a Llama-shaped model: everything but its weights."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    eps: float
    inv_freq: tuple[float, ...]
    """[d / 2] float32 values: the angle per position of each pair (i, i + d / 2) of a head."""
    attention_scaling: float
    """Factor on both cosine and sine (1 except for yarn)."""
    qkv_bias: bool
    qk_norm: bool
    tied: bool
    """Whether the output head is the embedding."""
    max_positions: int
    vocab: int

    @classmethod
    def from_config(cls, config: Config) -> "LeanShape":
        """Return the shape of `config`; raises `ModelLoadError` with the reason of `lean_fault`."""
        if fault := lean_fault(config):
            raise ModelLoadError(f"the lean forward cannot run this model: {fault}")
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        inv_freq, scaling = rope_frequencies(config.rope_parameters, head_dim)
        return cls(
            hidden=config.hidden_size,
            layers=config.num_hidden_layers,
            heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            head_dim=head_dim,
            intermediate=config.intermediate_size,
            eps=config.rms_norm_eps,
            inv_freq=inv_freq,
            attention_scaling=scaling,
            qkv_bias=config.model_type == "qwen2",
            qk_norm=config.model_type == "qwen3",
            tied=bool(config.tie_word_embeddings),
            max_positions=config.max_position_embeddings,
            vocab=config.vocab_size,
        )


def lean_fault(config: Config) -> str | None:
    """Return why `config` is not Llama-shaped, or None."""
    if config.model_type not in FAMILY:
        return f"architecture {config.model_type!r}; allowed: {', '.join(FAMILY)}"
    if config.hidden_act != "silu":
        return f"activation {config.hidden_act!r}; allowed: silu"
    if getattr(config, "attention_bias", False) or getattr(config, "mlp_bias", False):
        return "biases on the output or feed-forward projections"
    window = getattr(config, "sliding_window", None)
    if window is not None and window < config.max_position_embeddings:
        return f"a sliding window of {window}"
    return _rope_fault(config.rope_parameters or {})


def _rope_fault(rope: dict[str, object]) -> str | None:
    if rope.get("rope_type", "default") not in ROPE_TYPES:
        return f"rope type {rope.get('rope_type')!r}; allowed: {', '.join(ROPE_TYPES)}"
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        return f"rotary embedding on {rope['partial_rotary_factor']} of each head"
    return None


class Shaped(Protocol):
    """A matrix, in whatever form a forward reads it."""

    @property
    def shape(self) -> tuple[int, ...]: ...


M = TypeVar("M", bound=Shaped)


@dataclass(frozen=True, slots=True)
class LayerParts(Generic[M]):
    """Weights of one layer as they stand in the files."""

    qkv: tuple[M, M, M]  # each [heads * d, hidden]
    qkv_bias: Tensor | None  # [(h + 2k) * d]
    o: M  # [hidden, h * d]
    gate_up: tuple[M, M]  # each [intermediate, hidden]
    down: M  # [hidden, intermediate]
    input_norm: Tensor  # [hidden]
    post_norm: Tensor  # [hidden]
    q_norm: Tensor | None  # [d]
    k_norm: Tensor | None  # [d]


@dataclass(frozen=True, slots=True)
class LeanLayer:
    """Weights of one layer; projections with the same input are fused."""

    qkv: Tensor  # [(h + 2k) * d, hidden]: q rows, then k rows, then v rows
    qkv_bias: Tensor | None  # [(h + 2k) * d]
    o: Tensor  # [hidden, h * d]
    gate_up: Tensor  # [2 * intermediate, hidden]: gate rows, then up rows
    down: Tensor  # [hidden, intermediate]
    input_norm: Tensor  # [hidden]
    post_norm: Tensor  # [hidden]
    q_norm: Tensor | None  # [d]
    k_norm: Tensor | None  # [d]


def layer_parts(checkpoint: Checkpoint, shape: LeanShape, read: Callable[[str], M]) -> Iterator[LayerParts[M]]:
    """Yield the layers' weights one by one, matrices as `read` returns them.

    Raises `ModelLoadError` for a missing tensor, or a shape that differs from the configuration.
    """
    hidden, q_rows, kv_rows = shape.hidden, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    source = checkpoint.source

    def matrix(name: str, *sizes: int) -> M:
        return _checked(source, name, read(f"{name}.weight"), sizes)

    def vector(name: str, size: int) -> Tensor:
        return _checked(source, name, checkpoint.tensor(name), (size,))

    for i in range(shape.layers):
        layer = f"model.layers.{i}"
        attn, mlp = f"{layer}.self_attn", f"{layer}.mlp"
        q, k, v = ((f"{attn}.{p}_proj", rows) for p, rows in (("q", q_rows), ("k", kv_rows), ("v", kv_rows)))
        yield LayerParts(
            qkv=(matrix(q[0], q[1], hidden), matrix(k[0], k[1], hidden), matrix(v[0], v[1], hidden)),
            qkv_bias=torch.cat([vector(f"{p}.bias", rows) for p, rows in (q, k, v)]) if shape.qkv_bias else None,
            o=matrix(f"{attn}.o_proj", hidden, q_rows),
            gate_up=(
                matrix(f"{mlp}.gate_proj", shape.intermediate, hidden),
                matrix(f"{mlp}.up_proj", shape.intermediate, hidden),
            ),
            down=matrix(f"{mlp}.down_proj", hidden, shape.intermediate),
            input_norm=vector(f"{layer}.input_layernorm.weight", hidden),
            post_norm=vector(f"{layer}.post_attention_layernorm.weight", hidden),
            q_norm=vector(f"{attn}.q_norm.weight", shape.head_dim) if shape.qk_norm else None,
            k_norm=vector(f"{attn}.k_norm.weight", shape.head_dim) if shape.qk_norm else None,
        )


def lean_layers(checkpoint: Checkpoint, shape: LeanShape) -> Iterator[LeanLayer]:
    """Yield the layers' weights, projections of the same input fused; raises `ModelLoadError` as `layer_parts`."""
    for parts in layer_parts(checkpoint, shape, checkpoint.tensor):
        yield LeanLayer(
            qkv=torch.cat(parts.qkv),
            qkv_bias=parts.qkv_bias,
            o=parts.o,
            gate_up=torch.cat(parts.gate_up),
            down=parts.down,
            input_norm=parts.input_norm,
            post_norm=parts.post_norm,
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
    size = (shape.vocab, shape.hidden)
    source = checkpoint.source
    embedding, norm, head = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"
    return EndParts(
        embedding=_checked(source, embedding, read(embedding), size),
        final_norm=_checked(source, norm, checkpoint.tensor(norm), (shape.hidden,)),
        head=None if shape.tied else _checked(source, head, read(head), size),
    )


def lean_ends(checkpoint: Checkpoint, shape: LeanShape) -> EndParts[Tensor]:
    """Return the weights outside the layers as tensors; raises `ModelLoadError` as `layer_parts` does."""
    return end_parts(checkpoint, shape, checkpoint.tensor)


def _checked(source: Path, name: str, matrix: M, shape: tuple[int, ...]) -> M:
    if tuple(matrix.shape) != shape:
        raise ModelLoadError(f"{source}: {name} is {list(matrix.shape)}; its config says {list(shape)}")
    return matrix
