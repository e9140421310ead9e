"""The configuration of a Llama-shaped model: fields and defaults as in transformers, whose import takes two seconds."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt

from prolepsis.engine.models.families import FAMILIES

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

READ_HERE = {kind: family.defaults for kind, family in FAMILIES.items() if family.defaults is not None}
"""Defaults by the values of `model_type` that are read here, not by transformers."""
_DERIVED = ("num_key_value_heads", "head_dim")
"""Fields that follow from others where they are missing or null."""
_SCALED_FROM_LENGTH = ("llama3", "yarn")  # rope types whose formula takes the context length of the training


class LlamaShapedConfig(BaseModel):
    """The fields of config.json under their own names; further ones are kept for transformers."""

    model_config = ConfigDict(extra="allow", frozen=True, protected_namespaces=())

    model_type: str
    vocab_size: PositiveInt
    hidden_size: PositiveInt = 4096
    intermediate_size: PositiveInt
    num_hidden_layers: PositiveInt = 32
    num_attention_heads: PositiveInt = 32
    num_key_value_heads: PositiveInt = Field(default_factory=lambda known: known["num_attention_heads"])
    head_dim: PositiveInt = Field(default_factory=lambda known: known["hidden_size"] // known["num_attention_heads"])
    hidden_act: str = "silu"
    max_position_embeddings: PositiveInt
    rms_norm_eps: PositiveFloat = 1e-6
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    sliding_window: PositiveInt | None = None
    rope_parameters: dict[str, Any] = Field(default_factory=dict)
    """`rope_type` and `rope_theta`, and what the type needs besides."""
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None


def llama_shaped(stated: Mapping[str, Any]) -> LlamaShapedConfig:
    """Return the configuration whose fields are `stated`, the others with their defaults.

    Raises `ValueError` for another type of model, and for a value that a field cannot take (pydantic's error).
    """
    kind = str(stated.get("model_type"))
    if kind not in READ_HERE:
        raise ValueError(f"model_type {kind!r}; allowed: {', '.join(sorted(READ_HERE))}")
    fields = {**READ_HERE[kind], **stated}
    for name in _DERIVED:
        if fields.get(name) is None:
            fields.pop(name, None)
    if kind in ("qwen2", "qwen3"):
        fields |= _qwen_windows(fields)
    scaling, theta = fields.pop("rope_scaling", None), fields.pop("rope_theta", None)
    rope = dict(scaling or fields.get("rope_parameters") or {})
    rope.setdefault("rope_theta", 10000.0 if theta is None else theta)
    rope.setdefault("rope_type", rope.get("type", "default"))
    if (factor := fields.pop("partial_rotary_factor", None)) is not None:
        rope.setdefault("partial_rotary_factor", factor)
    if rope["rope_type"] in _SCALED_FROM_LENGTH:
        original = fields.get("original_max_position_embeddings")
        rope = {"original_max_position_embeddings": fields["max_position_embeddings"], **rope}
        rope |= {} if original is None else {"original_max_position_embeddings": original}
    fields["rope_parameters"] = rope
    return LlamaShapedConfig.model_validate(fields)


def for_transformers(config: "LlamaShapedConfig | PreTrainedConfig") -> "PreTrainedConfig":
    """Return a configuration of either kind as transformers' model classes take it."""
    from transformers import AutoConfig

    return AutoConfig.for_model(**config.model_dump()) if isinstance(config, LlamaShapedConfig) else config


def _qwen_windows(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return Qwen's fields of windows: there are none unless it says so, and then from layer `max_window_layers` on."""
    if not fields.get("use_sliding_window", False):
        return {"sliding_window": None}
    first, count = fields.get("max_window_layers", 28), fields.get("num_hidden_layers", 32)
    kinds = ["sliding_attention" if i >= first else "full_attention" for i in range(count)]
    return {"sliding_window": fields.get("sliding_window", 4096), "layer_types": fields.get("layer_types") or kinds}
