"""Keys of config.json that change what a model computes: and the values that change nothing.

Sources: the configuration classes of transformers and the forwards that read them.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from prolepsis.core.errors import ModelLoadError

Stated = Mapping[str, Any]  # the object in config.json

LIMITS: Mapping[str, int] = {
    "num_hidden_layers": 1 << 12,
    "num_attention_heads": 1 << 12,
    "num_key_value_heads": 1 << 12,
    "head_dim": 1 << 14,
    "hidden_size": 1 << 20,
    "intermediate_size": 1 << 22,
    "vocab_size": 1 << 24,
    "max_position_embeddings": 1 << 24,
    "query_pre_attn_scalar": 1 << 14,
}
"""Largest sizes that are read: beyond them a file is broken, and to compute with it would take all memory."""

_NEUTRAL: Mapping[tuple[object, ...], str] = {
    (None, False, 0): (
        "add_cross_attention alibi attention_bias attention_chunk_size attn_logit_softcapping attn_temperature_tuning "
        "clip_qkv dim_model_base final_logit_softcapping mlp_bias n_routed_experts no_rope_layer_interval num_experts "
        "num_local_experts qk_layernorm scale_depth use_alibi use_bidirectional_attention use_qk_norm "
        "use_sliding_window"
    ),
    (None, 1, 0): (
        "embedding_multiplier lm_head_multiplier logit_scale logits_scaling partial_rotary_factor residual_multiplier "
        "rotary_pct scale_emb"
    ),
    (None, True): "is_causal",
    (None,): "quantization_config rope_local_base_freq",
}
"""Values that change nothing, and the keys for which they do not; what depends on other keys is in `_DEPENDING`."""
_CHANGING = {key: values for values, keys in _NEUTRAL.items() for key in keys.split()}


def _score(stated: Stated, *, root: bool) -> Collection[object]:
    size = stated.get("head_dim") or _number(stated, "hidden_size") / max(1.0, _number(stated, "num_attention_heads"))
    return (None, size**-0.5 if root and size else size)


def _window(stated: Stated) -> Collection[object]:
    window, context = stated.get("sliding_window"), _number(stated, "max_position_embeddings")
    is_wide = isinstance(window, int | float) and window >= context
    return (None, 0, window) if is_wide or not stated.get("use_sliding_window", True) else (None, 0)


def _full(stated: Stated, key: str, kind: object) -> Collection[object]:
    value = stated.get(key)
    return (None, value) if isinstance(value, list) and all(item == kind for item in value) else (None,)


_DEPENDING: Mapping[str, Callable[[Stated], Collection[object]]] = {
    "attention_multiplier": lambda stated: _score(stated, root=True),
    "hidden_activation": lambda stated: (None, stated.get("hidden_act")),
    "query_pre_attn_scalar": lambda stated: _score(stated, root=False),
    "sliding_window": _window,
    "layer_types": lambda stated: _full(stated, "layer_types", "full_attention"),
    "no_rope_layers": lambda stated: _full(stated, "no_rope_layers", 1),
}
_OF_TRANSFORMERS = (
    *("attention_bias", "mlp_bias", "use_qk_norm", "qk_layernorm", "num_experts", "num_local_experts"),
    *("n_routed_experts", "quantization_config"),
)
"""Keys that transformers acts on; all but the last come with tensors, which it refuses by name without a place."""
_ROTATED_PARTS = ("partial_rotary_factor", "rotary_pct")
"""Names in published files for what transformers' classes keep in `rope_parameters`."""


def declared(config: object) -> frozenset[str]:
    """Return the keys that transformers' class of a configuration reads, and the keys that its tensors check."""
    kind = type(config)
    named = {entry.name for entry in fields(kind)} if is_dataclass(kind) else set(vars(config))
    aliases: Mapping[str, str] = getattr(kind, "attribute_map", {})
    rotated = [key for key in _ROTATED_PARTS if _rotates_a_part(kind, key)]
    return frozenset({*named, *aliases, *aliases.values(), *rotated, *_OF_TRANSFORMERS})


def _rotates_a_part(kind: type, key: str) -> bool:
    """Return whether a class rotates the part of a head that `key` says: it has a default, which the key replaces."""
    rotated = [(getattr(kind(**stated), "rope_parameters", None) or {}) for stated in ({}, {key: 0.5}, {key: 0.25})]
    default, half, quarter = (rope.get("partial_rotary_factor") for rope in rotated)
    return default is not None and (half, quarter) == (0.5, 0.25)


def refuse_unread(file: Path, stated: Stated, read: Collection[str]) -> None:
    """Raise `ModelLoadError` for a key outside `read` whose value changes what a model computes."""
    kind = stated.get("model_type")
    for key in sorted((_CHANGING.keys() | _DEPENDING.keys()) & stated.keys() - set(read)):
        neutral = _CHANGING[key] if key in _CHANGING else _DEPENDING[key](stated)
        if not any(_equal(stated[key], default) for default in neutral):
            raise ModelLoadError(f"{file}: {key} is {stated[key]!r}, which is not read here for model_type {kind!r}")


def refuse_sizes(file: Path, stated: Stated) -> None:
    """Raise `ModelLoadError` for a size that no model has."""
    for key, limit in LIMITS.items():
        value = stated.get(key)
        if isinstance(value, int | float) and not 1 <= value <= limit:
            raise ModelLoadError(f"{file}: {key} is {value}; allowed: 1 to {limit}")


def _equal(value: object, neutral: object) -> bool:
    if isinstance(value, int | float) and isinstance(neutral, int | float):
        return abs(value - neutral) <= 1e-6 * abs(neutral)
    return value == neutral


def _number(stated: Stated, key: str) -> float:
    value = stated.get(key)
    return float(value) if isinstance(value, int | float) else 0.0
