"""Shape and fused weights of the Llama-shaped family: Llama, Mistral without a window, Qwen2 and Qwen3.

Legend: h query heads, k key/value heads, d head dimension.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from prolepsis.core.errors import ModelLoadError
from prolepsis.models.files.weights import Checkpoint

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

FAMILY = ("llama", "mistral", "qwen2", "qwen3")
ROPE_TYPES = ("default", "linear", "llama3", "yarn")


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
    def from_config(cls, config: "PreTrainedConfig") -> "LeanShape":
        """Return the shape of `config`; raises `ModelLoadError` with the reason of `lean_fault`."""
        if fault := lean_fault(config):
            raise ModelLoadError(f"the lean forward cannot run this model: {fault}")
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        inv_freq, scaling = rope_frequencies(config, head_dim)
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


def lean_fault(config: "PreTrainedConfig") -> str | None:
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


def rope_frequencies(config: "PreTrainedConfig", head_dim: int) -> tuple[tuple[float, ...], float]:
    """Return the inverse frequencies and the scaling of cosine and sine, computed as in transformers."""
    rope = config.rope_parameters
    if rope.get("rope_type", "default") == "default":
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        return tuple((1.0 / rope["rope_theta"] ** exponents).tolist()), 1.0
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    inv_freq, scaling = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, torch.device("cpu"))
    return tuple(inv_freq.tolist()), float(scaling)


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


@dataclass(frozen=True, slots=True)
class LeanEnds:
    """Weights before the first and after the last layer."""

    embedding: Tensor  # [vocab, hidden]
    final_norm: Tensor  # [hidden]
    head: Tensor | None  # [vocab, hidden]; None: tied to the embedding


def lean_layers(checkpoint: Checkpoint, shape: LeanShape) -> Iterator[LeanLayer]:
    """Yield the layers' weights one by one, so that a caller that repacks them holds only one layer twice.

    Raises `ModelLoadError` for a missing tensor, or a shape that differs from the configuration.
    """
    hidden, q_rows, kv_rows = shape.hidden, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    for i in range(shape.layers):
        attn, mlp = f"model.layers.{i}.self_attn", f"model.layers.{i}.mlp"
        projections = (("q", q_rows), ("k", kv_rows), ("v", kv_rows))
        qkv = [_checked(checkpoint, f"{attn}.{p}_proj.weight", (rows, hidden)) for p, rows in projections]
        gate_up = [_checked(checkpoint, f"{mlp}.{p}_proj.weight", (shape.intermediate, hidden)) for p in ("gate", "up")]
        bias = None
        if shape.qkv_bias:
            bias = torch.cat([_checked(checkpoint, f"{attn}.{p}_proj.bias", (rows,)) for p, rows in projections])
        yield LeanLayer(
            qkv=torch.cat(qkv),
            qkv_bias=bias,
            o=_checked(checkpoint, f"{attn}.o_proj.weight", (hidden, q_rows)),
            gate_up=torch.cat(gate_up),
            down=_checked(checkpoint, f"{mlp}.down_proj.weight", (hidden, shape.intermediate)),
            input_norm=_checked(checkpoint, f"model.layers.{i}.input_layernorm.weight", (hidden,)),
            post_norm=_checked(checkpoint, f"model.layers.{i}.post_attention_layernorm.weight", (hidden,)),
            q_norm=_checked(checkpoint, f"{attn}.q_norm.weight", (shape.head_dim,)) if shape.qk_norm else None,
            k_norm=_checked(checkpoint, f"{attn}.k_norm.weight", (shape.head_dim,)) if shape.qk_norm else None,
        )


def lean_ends(checkpoint: Checkpoint, shape: LeanShape) -> LeanEnds:
    """Return the weights outside the layers; raises `ModelLoadError` as `lean_layers` does."""
    size = (shape.vocab, shape.hidden)
    return LeanEnds(
        embedding=_checked(checkpoint, "model.embed_tokens.weight", size),
        final_norm=_checked(checkpoint, "model.norm.weight", (shape.hidden,)),
        head=None if shape.tied else _checked(checkpoint, "lm_head.weight", size),
    )


def _checked(checkpoint: Checkpoint, name: str, shape: tuple[int, ...]) -> Tensor:
    tensor = checkpoint.tensor(name)
    if tuple(tensor.shape) != shape:
        raise ModelLoadError(f"{checkpoint.source}: {name} is {list(tensor.shape)}; its config says {list(shape)}")
    return tensor
