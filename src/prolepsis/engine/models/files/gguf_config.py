"""The transformers configuration and tensor names of a GGUF file, family by family.

Sources: llama.cpp's converter (conversion/) and its loader of each architecture (src/models/).
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from prolepsis.core.errors import ModelLoadError
from prolepsis.engine.models.files.checkpoint import Config, unread_tensors
from prolepsis.engine.models.files.config import KNOWN, LlamaShapedConfig, llama_shaped
from prolepsis.engine.models.files.rope import rope_frequencies

if TYPE_CHECKING:
    from prolepsis.engine.models.files.gguf import GgufFile

Fields = dict[str, object]

_ENDS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_NORMS_AFTER = {
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_GEMMA_NAMES = _NORMS_AFTER | {"ffn_norm": "pre_feedforward_layernorm"}
_PHI3_NAMES = {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}

_QKV_BIASES = frozenset({"attn_q.bias", "attn_k.bias", "attn_v.bias"})
_ATTENTION_BIASES = _QKV_BIASES | {"attn_output.bias"}
_MLP_BIASES = frozenset({"ffn_gate.bias", "ffn_up.bias", "ffn_down.bias"})
_QUERY_NORMS = frozenset({"attn_q_norm.weight", "attn_k_norm.weight"})
_OPTIONAL = _ATTENTION_BIASES | _MLP_BIASES | _QUERY_NORMS
"""Parts of a layer that some families have; all others have none."""
_FREQUENCIES = frozenset({"rope_freqs.weight"})
_FACTORS = frozenset({"rope_factors_long.weight", "rope_factors_short.weight"})
_SOFTCAPS = frozenset({"attn_logit_softcapping", "final_logit_softcapping"})
_NEUTRAL: Mapping[str, float] = {
    "attention.clamp_kqv": 0,
    "attention.max_alibi_bias": 0,
    "attention.causal": True,
    "attn_logit_softcapping": 0,
    "embedding_scale": 1,
    "expert_count": 0,
    "final_logit_softcapping": 0,
    "logit_scale": 1,
    "nextn_predict_layers": 0,
    "residual_scale": 1,
    "rope.scale_linear": 1,
    "rope.scaling.attn_factor": 1,
}
"""Numbers that change what a model computes, and the value with which they do not; 0 stands for "not set" too."""
_READ = frozenset(
    {
        *("block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count"),
        *("attention.head_count_kv", "attention.key_length", "attention.layer_norm_rms_epsilon", "rope.freq_base"),
        *("rope.scaling.type", "rope.scaling.factor"),
    }
)
"""Keys that all families read."""
_HARMLESS = frozenset(
    {
        *("vocab_size", "tensor_data_layout", "rope.scaling.finetuned", "rope.scaling.original_context_length"),
        *("expert_used_count", "attention.layer_norm_epsilon", "pooling_type"),
    }
)
"""Keys that change nothing in the families read here."""
_BESIDE_THE_TEXT = ("vision.", "audio.", "mm.")
"""Beginnings of keys of what turns images and sounds into tokens, which a text has none of; its tensors are refused."""
_WINDOW = "attention.sliding_window"
_LARGEST = 1 << 24
"""No size of a model is beyond it; a file that says so is broken."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """Names and conventions with which llama.cpp stores a family."""

    model_type: str
    """The transformers type."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Tensors of a layer that `_LAYER` lacks, or that mean something else here."""
    permuted: bool = False
    """Whether q and k rows are interleaved: pair (i, i + d/2) of a head is at (2i, 2i + 1)."""
    norm_offset: float = 0.0
    """Value that the converter added to the weights of norms."""
    optional: frozenset[str] = frozenset()
    """Keys of `_OPTIONAL` that it may have."""
    numbers: frozenset[str] = frozenset()
    """Keys beyond Llama's that `fields` reads."""
    frequencies: frozenset[str] = _FREQUENCIES
    """Tensors that belong to the configuration: what the frequencies of rotations are divided by."""
    fields: Callable[["GgufFile"], Fields] = lambda file: {}
    """Configuration fields beyond Llama's."""
    is_complete: bool = False
    """Whether all that a forward asks is among the fields; else transformers' class adds its defaults."""


def gguf_config(file: "GgufFile") -> Config:
    """Return the configuration of a file of one of `ARCHITECTURES`; raises `ModelLoadError` for unusable metadata."""
    name = file.text("general.architecture")
    architecture = ARCHITECTURES[name]
    fields = {"model_type": architecture.model_type, **_llama_fields(file), **architecture.fields(file)}
    try:
        if architecture.model_type in KNOWN:
            return llama_shaped(fields)
        return LlamaShapedConfig.model_validate(fields) if architecture.is_complete else _by_transformers(fields)
    except Exception as error:  # configuration classes raise validation errors without a common base class
        raise ModelLoadError(f"{file.path}: its metadata is not a usable {name} configuration: {error}") from error


def _by_transformers(fields: Mapping[str, Any]) -> Config:
    from transformers import AutoConfig

    return AutoConfig.for_model(**fields)


def transformers_name(name: str, architecture: Architecture) -> str | None:
    """Return the transformers name of GGUF tensor `name`, None for one that is no parameter of the family."""
    if name in _ENDS:
        return _ENDS[name]
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
    part = f"{match[2]}.{match[3]}" if match else ""
    if part in _OPTIONAL - architecture.optional or (part.endswith(".bias") and part not in _OPTIONAL):
        return None
    to = (_LAYER | dict(architecture.names)).get(match[2]) if match else None
    return f"model.layers.{match[1]}.{to}.{match[3]}" if match and to else None


def refuse_unread(file: "GgufFile") -> None:
    """Raise `ModelLoadError` for tensors and keys that are not read, and for numbers that would change the result."""
    name = file.text("general.architecture")
    architecture = ARCHITECTURES[name]
    if _field(file, "block_count") > len(file.tensors):
        raise ModelLoadError(f"{file.path}: {len(file.tensors)} tensors for {_field(file, 'block_count')} blocks")
    tensors = [one for one in file.tensors if transformers_name(one, architecture) is None]
    if unread := sorted(set(tensors) - architecture.frequencies):
        raise ModelLoadError(f"{file.path}: {unread_tensors(unread, name)}")
    sizes = {key: _head_dim(file) for key in ("attention.value_length", "rope.dimension_count")}
    neutral = {**_NEUTRAL, "attention.scale": _head_dim(file) ** -0.5, **sizes}
    for key in sorted(set(neutral) - architecture.numbers):
        value = _float32(file, key, neutral[key])
        if value and not abs(value - neutral[key]) <= 1e-6 * abs(neutral[key]):  # NaN is none of them
            raise ModelLoadError(
                f"{file.path}: {_key(file, key)} is {value:g}, which is not read here for architecture {name!r}; "
                f"allowed: {neutral[key]:g}"
            )
    known = {*_READ, *_HARMLESS, *neutral, *architecture.numbers}
    if (_optional(file, _WINDOW) or _LARGEST) >= _field(file, "context_length"):
        known.add(_WINDOW)
    for key in sorted(file.metadata):
        own = key.removeprefix(f"{name}.")
        if own != key and own not in known and not own.startswith(_BESIDE_THE_TEXT):
            raise ModelLoadError(
                f"{file.path}: {key} is {file.metadata[key]!r:.40}, which is not read here for architecture {name!r}"
            )


def _llama_biases(file: "GgufFile") -> Fields:
    """Return which biases a file of Llama's architecture has: a kind is there as a whole or not at all."""
    found = {part for name in file.tensors if (part := name.partition(".")[2].partition(".")[2]) in _OPTIONAL}
    for kind in (_ATTENTION_BIASES, _MLP_BIASES):
        if found & kind and kind - found:
            raise ModelLoadError(
                f"{file.path} has {min(found & kind)} but not {min(kind - found)}: all or none are read"
            )
    return {"attention_bias": bool(found & _ATTENTION_BIASES), "mlp_bias": bool(found & _MLP_BIASES)}


def _llama_fields(file: "GgufFile") -> Fields:
    hidden, heads = _field(file, "embedding_length"), _field(file, "attention.head_count")
    kv_heads = _optional(file, "attention.head_count_kv") or heads
    if kv_heads < 1 or heads % kv_heads:
        raise ModelLoadError(f"{file.path}: {heads} heads of queries are no multiple of {kv_heads} of keys")
    return {
        "vocab_size": file.tensors["token_embd.weight"].shape[0] if "token_embd.weight" in file.tensors else 0,
        "hidden_size": hidden,
        "num_hidden_layers": _field(file, "block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": _head_dim(file),
        "intermediate_size": _field(file, "feed_forward_length"),
        "max_position_embeddings": _field(file, "context_length"),
        "rms_norm_eps": _number(file, "attention.layer_norm_rms_epsilon"),
        "rope_parameters": _rope(file),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "bos_token_id": file.integer("tokenizer.ggml.bos_token_id"),
        "eos_token_id": list(file.end_tokens()),
        "pad_token_id": file.integer("tokenizer.ggml.padding_token_id"),
    }


def _mistral_fields(file: "GgufFile") -> Fields:
    return {"sliding_window": _optional(file, "attention.sliding_window")}


def _gemma2_fields(file: "GgufFile") -> Fields:
    return {
        "query_pre_attn_scalar": _gemma_score_size(file, layers_of_27b=46),
        "sliding_window": _optional(file, "attention.sliding_window") or 4096,
        "attn_logit_softcapping": _number(file, "attn_logit_softcapping", 50.0),
        "final_logit_softcapping": _number(file, "final_logit_softcapping", 30.0),
    }


def _gemma3_fields(file: "GgufFile") -> Fields:
    window = _optional(file, "attention.sliding_window")
    local = {"rope_type": "default", "rope_theta": _float32(file, "rope.freq_base_swa", 10000.0)}
    return {
        "query_pre_attn_scalar": _gemma_score_size(file, layers_of_27b=62),
        "sliding_window": window,
        "layer_types": ["sliding_attention" if window and slides else "full_attention" for slides in _pattern(file)],
        "rope_parameters": {"full_attention": _rope(file, default_base=1e6), "sliding_attention": local},
        "final_logit_softcapping": _number(file, "final_logit_softcapping", 0.0) or None,
        "hidden_activation": "gelu_pytorch_tanh",
    }


def _pattern(file: "GgufFile") -> list[bool]:
    """Return which layers of Gemma 3 have a window: those listed, or all but every sixth."""
    pattern = file.metadata.get(_key(file, "attention.sliding_window_pattern"), 6)
    if isinstance(pattern, list):
        return [bool(slides) for slides in pattern]
    if not isinstance(pattern, int) or pattern < 1:
        raise ModelLoadError(
            f"{file.path}: a pattern of windows of {pattern!r}; allowed: a list, or a number from 1 on"
        )
    return [(i + 1) % pattern != 0 for i in range(_field(file, "block_count"))]


def _gemma_score_size(file: "GgufFile", layers_of_27b: int) -> int:
    """Return the size whose root divides scores: that of a head; the 27B models have hidden size over heads."""
    if _field(file, "block_count") == layers_of_27b:
        return _field(file, "embedding_length") // _field(file, "attention.head_count")
    return _head_dim(file)


def _granite_fields(file: "GgufFile") -> Fields:
    return {
        "attention_multiplier": _number(file, "attention.scale", _head_dim(file) ** -0.5),
        "embedding_multiplier": _number(file, "embedding_scale", 1.0),
        "residual_multiplier": _number(file, "residual_scale", 1.0),
        "logits_scaling": _number(file, "logit_scale", 1.0),
    }


def _phi3_fields(file: "GgufFile") -> Fields:
    size = _optional(file, "rope.dimension_count") or _head_dim(file)
    rope = _rope(file) | {"partial_rotary_factor": size / _head_dim(file)}
    fields: Fields = {"sliding_window": _optional(file, "attention.sliding_window") or None, "rope_parameters": rope}
    if found := _FACTORS & file.tensors.keys():
        if missing := _FACTORS - found:
            raise ModelLoadError(f"{file.path} has {min(found)} but not {min(missing)}")
        original = _field(file, "rope.scaling.original_context_length")
        rope |= {
            "rope_type": "longrope",
            "short_factor": file.load("rope_factors_short.weight").tolist(),
            "long_factor": file.load("rope_factors_long.weight").tolist(),
            "original_max_position_embeddings": original,
        }
        if factor := _number(file, "rope.scaling.attn_factor", 0.0):
            rope["attention_factor"] = factor
        fields["original_max_position_embeddings"] = original
    return fields


ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture("llama", permuted=True, optional=_ATTENTION_BIASES | _MLP_BIASES, fields=_llama_biases),
    "mistral": Architecture("mistral", numbers=frozenset({_WINDOW}), fields=_mistral_fields),
    "qwen2": Architecture("qwen2", optional=_QKV_BIASES),
    "qwen3": Architecture("qwen3", optional=_QUERY_NORMS),
    "smollm3": Architecture("smollm3", permuted=True),
    "granite": Architecture(
        "granite",
        permuted=True,
        numbers=frozenset({"attention.scale", "embedding_scale", "residual_scale", "logit_scale"}),
        fields=_granite_fields,
    ),
    "phi3": Architecture(
        "phi3",
        _PHI3_NAMES,
        numbers=frozenset({"rope.dimension_count", "rope.scaling.attn_factor", _WINDOW}),
        frequencies=_FACTORS,
        fields=_phi3_fields,
    ),
    "olmo2": Architecture("olmo2", _NORMS_AFTER, optional=_QUERY_NORMS),
    "gemma2": Architecture(
        "gemma2", _GEMMA_NAMES, norm_offset=1.0, numbers=_SOFTCAPS | {_WINDOW}, fields=_gemma2_fields
    ),
    "gemma3": Architecture(
        "gemma3_text",
        _GEMMA_NAMES,
        norm_offset=1.0,
        optional=_QUERY_NORMS,
        numbers=frozenset(
            {"final_logit_softcapping", _WINDOW, "attention.sliding_window_pattern", "rope.freq_base_swa"}
        ),
        fields=_gemma3_fields,
        is_complete=True,
    ),
}


def _head_dim(file: "GgufFile") -> int:
    if _optional(file, "attention.key_length"):
        return _field(file, "attention.key_length")
    hidden, heads = _field(file, "embedding_length"), _field(file, "attention.head_count")
    if heads > hidden:
        raise ModelLoadError(f"{file.path}: an embedding of {hidden} for {heads} heads")
    return hidden // heads


def _key(file: "GgufFile", key: str) -> str:
    return f"{file.text('general.architecture')}.{key}"


def _field(file: "GgufFile", key: str) -> int:
    value = _optional(file, key)
    if value is None:
        raise ModelLoadError(f"{file.path} lacks the metadata {_key(file, key)}")
    if not 1 <= value <= _LARGEST:
        raise ModelLoadError(f"{file.path}: {_key(file, key)} is {value}; allowed: 1 to {_LARGEST}")
    return value


def _optional(file: "GgufFile", key: str) -> int | None:
    return file.integer(_key(file, key))


def _number(file: "GgufFile", key: str, default: float | None = None) -> float:
    """Return a float32 number as the decimal number that it was written from, of up to 6 digits.

    Raises `ModelLoadError` for one that is missing and has no default.
    """
    if default is None and _key(file, key) not in file.metadata:
        raise ModelLoadError(f"{file.path} lacks the metadata {_key(file, key)}")
    default = math.nan if default is None else default
    return float(f"{_float32(file, key, default):.6g}")


def _float32(file: "GgufFile", key: str, default: float) -> float:
    value = file.metadata.get(_key(file, key), default)
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise ModelLoadError(f"{file.path}: {_key(file, key)} is {value!r:.40}; expected a number")
    return float(value)


def _rope(file: "GgufFile", default_base: float = 10000.0) -> Fields:
    base = _float32(file, "rope.freq_base", default_base)
    rope: Fields = {"rope_type": "default", "rope_theta": base}
    scaling = file.text(_key(file, "rope.scaling.type"), "none")
    if scaling != "none" and "rope_freqs.weight" in file.tensors:
        raise ModelLoadError(
            f"{file.path} has both rope_freqs.weight and rope scaling {scaling!r}; one of them is read"
        )
    if scaling == "linear":
        return rope | {"rope_type": "linear", "factor": _float32(file, "rope.scaling.factor", 1.0)}
    if scaling != "none":
        raise ModelLoadError(f"{file.path}: rope scaling {scaling!r} is not read from GGUF; allowed: none, linear")
    if "rope_freqs.weight" in file.tensors:
        return rope | _llama3_scaling(file, base)
    return rope


def _llama3_scaling(file: "GgufFile", base: float) -> Fields:
    """Recover Llama 3's scaling from the divisors llama.cpp stores in its place, and check that they agree."""
    divisors = file.load("rope_freqs.weight")
    found: Fields = {
        "rope_type": "llama3",
        "factor": float(divisors.max()),
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    dim = 2 * divisors.numel()
    plain, _ = rope_frequencies({"rope_theta": base}, dim)
    scaled, _ = rope_frequencies({"rope_theta": base, **found}, dim)
    if not torch.allclose(torch.tensor(plain) / divisors, torch.tensor(scaled), rtol=1e-3):
        raise ModelLoadError(f"{file.path}: rope_freqs.weight is not Llama 3's scaling, the only one read from GGUF")
    return found
