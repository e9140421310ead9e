"""The shape of a model as data: its sizes, and what each of its layers computes.

The forwards know this description only; `engine.models.families` says how it follows from a transformers configuration.

Legend: h query heads, k key/value heads, d head dimension.
"""

from dataclasses import dataclass, field, replace
from typing import Any

from prolepsis.core.errors import ModelLoadError
from prolepsis.engine.models.families import FAMILIES, Family, NormNames, QueryNorm, Scales
from prolepsis.engine.models.files.checkpoint import Config
from prolepsis.engine.models.files.rope import ROPE_TYPES, rope_frequencies

ACTIVATIONS = ("silu", "gelu_pytorch_tanh")
FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True, slots=True)
class Rope:
    """A rotary embedding of r entries of a head: r is d, or less where only the first part of a head is rotated."""

    inv_freq: tuple[float, ...]
    """[r / 2] float32 values: the angle per position of each pair (i, i + r / 2) of a head."""
    scaling: float = 1.0  # factor on both cosine and sine


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Computation of one layer; the model has its sizes."""

    rope: Rope | None
    score_scale: float  # factor on the products of queries and keys
    score_cap: float | None = None  # scores s become cap * tanh(s / cap)
    window: int | None = None  # a token sees this many positions, its own included; None: all before it
    activation: str = "silu"
    residual_scale: float = 1.0  # factor on what attention and feed-forward add to the hidden state


@dataclass(frozen=True, slots=True)
class LeanShape:
    """A model without its weights."""

    hidden: int
    layers: tuple[LayerShape, ...]
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    eps: float
    max_positions: int
    vocab: int
    tied: bool = False  # whether the output head is the embedding
    norms: NormNames = field(default_factory=NormNames)
    norm_offset: float = 0.0  # added to the weights of all norms, as the files hold them
    query_norm: QueryNorm | None = None
    qkv_bias: bool = False
    fused: bool = False  # whether q, k and v are one matrix in the files, and gate and up another
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    logit_cap: float | None = None  # scaled logits x become cap * tanh(x / cap)

    @property
    def token_bytes(self) -> int:
        """`ModelInfo.token_bytes`: all activations that are alive at once, in float32, and the logits twice."""
        attention = (2 * self.heads + 2 * self.kv_heads) * self.head_dim
        return 4 * (4 * self.hidden + attention + 3 * self.intermediate + 2 * self.vocab)

    @classmethod
    def from_config(cls, config: Config) -> "LeanShape":
        """Return the shape of `config`; raises `ModelLoadError` with the reason of `lean_fault`."""
        if fault := lean_fault(config):
            raise ModelLoadError(f"the lean forward cannot run this model: {fault}")
        try:
            family = FAMILIES[config.model_type]
            scales = family.scales(config)
            return cls(
                hidden=config.hidden_size,
                layers=_layers(config, family, scales),
                heads=config.num_attention_heads,
                kv_heads=config.num_key_value_heads,
                head_dim=_head_dim(config),
                intermediate=config.intermediate_size,
                eps=config.rms_norm_eps,
                max_positions=max_positions(config),
                vocab=config.vocab_size,
                tied=bool(config.tie_word_embeddings),
                norms=family.norms,
                norm_offset=family.norm_offset,
                query_norm=family.query_norm,
                qkv_bias=family.qkv_bias,
                fused=family.fused,
                embedding_scale=scales.embedding,
                logit_scale=scales.logits,
                logit_cap=scales.logit_cap,
            )
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            raise ModelLoadError(f"the configuration describes no model that can run: {error!r}") from error

    @property
    def ropes(self) -> tuple[Rope, ...]:
        return tuple(dict.fromkeys(layer.rope for layer in self.layers if layer.rope is not None))

    @property
    def rope(self) -> Rope:
        """The rotation of layers that see the whole context, which a draft head shares; of any if there are none."""
        return next((layer.rope for layer in self.layers if layer.rope and layer.window is None), self.ropes[0])

    def llama_layer(self) -> "LeanShape":
        """Return the shape of one Llama layer with these sizes and this rotation, as draft heads have it."""
        layer = LayerShape(self.rope, score_scale=self.head_dim**-0.5)
        return replace(
            self, layers=(layer,), norms=NormNames(), norm_offset=0.0, query_norm=None, qkv_bias=False, fused=False
        )


def lean_fault(config: Config) -> str | None:
    """Return why no `LeanShape` describes `config`, or None."""
    if config.model_type not in FAMILIES:
        return f"architecture {config.model_type!r}; allowed: {', '.join(FAMILIES)}"
    if _activation(config) not in ACTIVATIONS:
        return f"activation {_activation(config)!r}; allowed: {', '.join(ACTIVATIONS)}"
    if getattr(config, "attention_bias", False) or getattr(config, "mlp_bias", False):
        return "biases on the output or feed-forward projections"
    if getattr(config, "use_bidirectional_attention", False):
        return "attention that is not causal"
    return _layer_fault(config)


def check_layers(config: Config) -> None:
    """Raise `ModelLoadError` for heads and layers that no forward can make sense of."""
    heads, count = config.num_attention_heads, config.num_hidden_layers
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    if isinstance(heads, int) and isinstance(kv_heads, int) and heads % kv_heads:
        raise ModelLoadError(f"{heads} heads of queries are no multiple of {kv_heads} of keys")
    for name in ("layer_types", "no_rope_layers"):
        listed = getattr(config, name, None) or [None] * count
        if not isinstance(listed, list) or len(listed) != count:
            raise ModelLoadError(f"{name} is {listed!r}; expected: a list of {count}, as many as there are layers")


def _layer_fault(config: Config) -> str | None:
    if others := set(_layer_types(config)) - {FULL, SLIDING}:
        return f"layers of type {', '.join(sorted(others))}; allowed: {FULL}, {SLIDING}"
    for rope in (rope_parameters(config, kind) for kind in _layer_types(config)):
        if rope.get("rope_type", "default") not in ROPE_TYPES:
            return f"rope type {rope['rope_type']!r}; allowed: {', '.join(ROPE_TYPES)}"
        if rope.get("partial_rotary_factor", 1.0) != 1.0 and not FAMILIES[config.model_type].partial_rotary:
            return f"rotary embedding on {rope['partial_rotary_factor']} of each head"
    return None


def max_positions(config: Config) -> int:
    """Return the longest supported context; with longrope, only the part that does not depend on other sequences."""
    limit = int(config.max_position_embeddings)
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":
        return int(rope.get("original_max_position_embeddings", limit))
    return limit


def _layers(config: Config, family: Family, scales: Scales) -> tuple[LayerShape, ...]:
    kinds = _layer_types(config)
    ropes = {kind: _rope(config, kind) for kind in dict.fromkeys(kinds)}
    rotated = getattr(config, "no_rope_layers", None) or [1] * len(kinds)  # SmolLM3: 0 where a layer is not rotated
    return tuple(
        LayerShape(
            rope=ropes[kind] if rotates else None,
            score_scale=_head_dim(config) ** -0.5 if scales.score is None else scales.score,
            score_cap=scales.score_cap,
            window=_window(config) if family.windows and kind == SLIDING else None,
            activation=_activation(config),
            residual_scale=scales.residual,
        )
        for kind, rotates in zip(kinds, rotated, strict=False)
    )


def _layer_types(config: Config) -> list[str]:
    kinds = getattr(config, "layer_types", None)
    return list(kinds or [FULL if _window(config) is None else SLIDING] * config.num_hidden_layers)


def _window(config: Config) -> int | None:
    window = getattr(config, "sliding_window", None)
    return window if window is not None and window < config.max_position_embeddings else None


def _activation(config: Config) -> str:
    return str(getattr(config, "hidden_activation", None) or config.hidden_act)


def _head_dim(config: Config) -> int:
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def rope_parameters(config: Config, kind: str = FULL) -> dict[str, Any]:
    """Return the rotary parameters of layers of this kind: one set for all layers, or one for each kind (Gemma 3)."""
    rope: dict[str, Any] = config.rope_parameters or {}
    return rope[kind] if isinstance(rope.get(kind), dict) else rope


def _rope(config: Config, kind: str) -> Rope:
    rope = rope_parameters(config, kind)
    if rope.get("rope_type") == "longrope" and rope.get("factor") is None:
        rope = rope | {"factor": config.max_position_embeddings / rope["original_max_position_embeddings"]}
    inv_freq, scaling = rope_frequencies(rope, int(_head_dim(config) * rope.get("partial_rotary_factor", 1.0)))
    return Rope(inv_freq, scaling)
