"""The families of models that are read and run here, one row each: how they differ from Llama.

A row says what a forward computes, which keys of config.json it reads, and how llama.cpp stores the family in GGUF.
Sources: transformers' configuration classes and forwards; llama.cpp's converter (conversion/) and its loader of each
architecture (src/models/).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, cast

import torch

from prolepsis.core.errors import ModelLoadError

if TYPE_CHECKING:
    from prolepsis.engine.models.files.gguf_file import GgufFile

Fields = dict[str, object]
QueryNorm = Literal["head", "row"]
"""What a norm of queries and keys takes: each head by itself, or all heads of a token at once."""


@dataclass(frozen=True, slots=True)
class NormNames:
    """Norms of a layer, by their names in the files; None: there is none."""

    before_attention: str | None = "input_layernorm"
    after_attention: str | None = None
    before_feed_forward: str | None = "post_attention_layernorm"
    after_feed_forward: str | None = None


@dataclass(frozen=True, slots=True)
class Scales:
    """Factors and caps of a model; defaults are Llama's."""

    embedding: float = 1.0
    score: float | None = None  # None: one over the root of d
    score_cap: float | None = None
    residual: float = 1.0
    logits: float = 1.0
    logit_cap: float | None = None


@dataclass(frozen=True, slots=True)
class Family:
    """Differences of a family from Llama."""

    model_type: str  # the transformers type
    keys: str = ""  # keys of config.json beyond `config_keys` that its forwards read or refuse themselves
    defaults: Mapping[str, Any] | None = None
    """Of fields that config.json leaves out, where `LlamaShapedConfig` has others; None: transformers reads it."""
    norms: NormNames = field(default_factory=NormNames)
    norm_offset: float = 0.0
    """Added to the weights of all norms, as config.json's files hold them; llama.cpp's converter has added it."""
    query_norm: QueryNorm | None = None
    qkv_bias: bool = False
    fused: bool = False  # whether q, k and v are one matrix in the files, and gate and up another
    partial_rotary: bool = False  # whether `partial_rotary_factor` counts: the part of a head that is rotated
    windows: bool = False
    """Whether `sliding_window` counts, in all layers or in the layers that `layer_types` names."""
    scales: Callable[[Any], Scales] = lambda config: Scales()
    gguf: str = ""  # llama.cpp's architecture, where it is not `model_type`
    permuted: bool = False
    """Whether q and k rows are interleaved in GGUF: pair (i, i + d/2) of a head is at (2i, 2i + 1)."""
    gguf_biases: bool = False
    """Whether a GGUF file has biases on all of attention, or on all of the feed-forward, without saying so."""
    gguf_keys: str = ""  # keys of its metadata beyond Llama's that `gguf_fields` reads
    gguf_factors: frozenset[str] = frozenset({"rope_freqs.weight"})
    """GGUF tensors that belong to the configuration: what the frequencies of rotations are divided by."""
    gguf_rope_base: float = 10000.0  # base of rotations in a file that does not say
    gguf_fields: Callable[["GgufFile", Fields], Fields] = lambda file, fields: {}
    """Configuration fields beyond Llama's, which are given."""
    gguf_complete: bool = False
    """Whether all that a forward asks is among the fields; else transformers' class adds its defaults."""


def _gemma3_scales(config: Any) -> Scales:
    root = torch.tensor(config.hidden_size**0.5, dtype=torch.bfloat16)  # rounded, as the models were trained
    return Scales(
        embedding=float(root), score=config.query_pre_attn_scalar**-0.5, logit_cap=config.final_logit_softcapping
    )


def _granite_scales(config: Any) -> Scales:
    return Scales(
        embedding=config.embedding_multiplier,
        score=config.attention_multiplier,
        residual=config.residual_multiplier,
        logits=1.0 / config.logits_scaling,
    )


def _granite_fields(file: "GgufFile", _: Fields) -> Fields:
    return {
        "attention_multiplier": file.number("attention.scale", file.head_dim**-0.5),
        "embedding_multiplier": file.number("embedding_scale", 1.0),
        "residual_multiplier": file.number("residual_scale", 1.0),
        "logits_scaling": file.number("logit_scale", 1.0),
    }


def _phi3_fields(file: "GgufFile", fields: Fields) -> Fields:
    size, factors = file.optional_size("rope.dimension_count") or file.head_dim, _PHI3.gguf_factors
    rope = {**cast(Fields, fields["rope_parameters"]), "partial_rotary_factor": size / file.head_dim}
    values: Fields = {"sliding_window": file.optional_size("attention.sliding_window") or None, "rope_parameters": rope}
    if present := factors & file.tensors.keys():
        if missing := factors - present:
            raise ModelLoadError(f"{file.path} has {min(present)} but not {min(missing)}")
        values["original_max_position_embeddings"] = original = file.size("rope.scaling.original_context_length")
        rope |= {
            "rope_type": "longrope",
            "short_factor": file.load("rope_factors_short.weight").tolist(),
            "long_factor": file.load("rope_factors_long.weight").tolist(),
            "original_max_position_embeddings": original,
        }
        if factor := file.number("rope.scaling.attn_factor", 0.0):
            rope["attention_factor"] = factor
    return values


def _gemma_score_size(file: "GgufFile", layers_of_27b: int) -> int:
    """Return the size whose root divides scores: that of a head; the 27B models have hidden size over heads."""
    if file.size("block_count") == layers_of_27b:
        return file.size("embedding_length") // file.size("attention.head_count")
    return file.head_dim


def _gemma2_fields(file: "GgufFile", _: Fields) -> Fields:
    return {
        "query_pre_attn_scalar": _gemma_score_size(file, layers_of_27b=46),
        "sliding_window": file.optional_size("attention.sliding_window") or 4096,
        "attn_logit_softcapping": file.number("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": file.number("final_logit_softcapping", 30.0),
    }


def _gemma3_fields(file: "GgufFile", fields: Fields) -> Fields:
    """Return the fields of a file; windows are in the layers that its pattern lists, or in all but every sixth."""
    window = file.optional_size("attention.sliding_window")
    pattern = file.metadata.get(file.own_key("attention.sliding_window_pattern"), 6)
    if isinstance(pattern, int) and pattern >= 1:
        pattern = [(i + 1) % pattern != 0 for i in range(file.size("block_count"))]
    if not isinstance(pattern, list):
        message = f"a pattern of windows of {pattern!r}; allowed: a list, or a number from 1 on"
        raise ModelLoadError(f"{file.path}: {message}")
    local = {"rope_type": "default", "rope_theta": file.float32("rope.freq_base_swa", 10000.0)}
    return {
        "query_pre_attn_scalar": _gemma_score_size(file, layers_of_27b=62),
        "sliding_window": window,
        "layer_types": ["sliding_attention" if window and slides else "full_attention" for slides in pattern],
        "rope_parameters": {"full_attention": fields["rope_parameters"], "sliding_attention": local},
        "final_logit_softcapping": file.number("final_logit_softcapping", 0.0) or None,
        "hidden_activation": "gelu_pytorch_tanh",
    }


_LLAMA_DEFAULTS = {
    "vocab_size": 32000,
    "intermediate_size": 11008,
    "max_position_embeddings": 2048,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_QWEN_DEFAULTS = {
    "vocab_size": 151936,
    "intermediate_size": 22016,
    "max_position_embeddings": 32768,
    "num_key_value_heads": 32,
}
_BIASES = "attention_bias mlp_bias"
_QWEN_KEYS = "sliding_window use_sliding_window layer_types partial_rotary_factor"
_GEMMA_KEYS = (
    "attention_bias query_pre_attn_scalar final_logit_softcapping hidden_activation sliding_window layer_types "
    "use_bidirectional_attention"
)
_AFTER = {"after_attention": "post_attention_layernorm", "after_feed_forward": "post_feedforward_layernorm"}
_GEMMA_NORMS = NormNames(before_feed_forward="pre_feedforward_layernorm", **_AFTER)
_PHI3 = Family(
    "phi3",
    "sliding_window partial_rotary_factor",
    fused=True,
    partial_rotary=True,
    windows=True,
    gguf_keys="rope.dimension_count rope.scaling.attn_factor attention.sliding_window",
    gguf_factors=frozenset({"rope_factors_long.weight", "rope_factors_short.weight"}),
    gguf_fields=_phi3_fields,
)
_ROWS = (
    Family("llama", f"{_BIASES} partial_rotary_factor", _LLAMA_DEFAULTS, permuted=True, gguf_biases=True),
    Family(
        "mistral",
        "sliding_window partial_rotary_factor",
        {
            **_LLAMA_DEFAULTS,
            "intermediate_size": 14336,
            "max_position_embeddings": 131072,
            "num_key_value_heads": 8,
            "sliding_window": 4096,
        },
        windows=True,
        gguf_keys="attention.sliding_window",
        gguf_fields=lambda file, _: {"sliding_window": file.optional_size("attention.sliding_window")},
    ),
    Family("qwen2", _QWEN_KEYS, _QWEN_DEFAULTS, qkv_bias=True, windows=True),
    Family(
        "qwen3", f"{_QWEN_KEYS} attention_bias", {**_QWEN_DEFAULTS, "head_dim": 128}, query_norm="head", windows=True
    ),
    Family(
        "smollm3",
        f"{_BIASES} sliding_window use_sliding_window layer_types no_rope_layers no_rope_layer_interval",
        windows=True,
        permuted=True,
    ),
    _PHI3,
    Family(
        "granite",
        f"{_BIASES} embedding_multiplier attention_multiplier residual_multiplier logits_scaling",
        scales=_granite_scales,
        permuted=True,
        gguf_keys="attention.scale embedding_scale residual_scale logit_scale",
        gguf_fields=_granite_fields,
    ),
    Family(
        "olmo2",
        "attention_bias",
        norms=NormNames(before_attention=None, before_feed_forward=None, **_AFTER),
        query_norm="row",
    ),
    Family(
        "gemma2",
        f"{_GEMMA_KEYS} attn_logit_softcapping",
        norms=_GEMMA_NORMS,
        norm_offset=1.0,
        windows=True,
        scales=lambda config: replace(_gemma3_scales(config), score_cap=config.attn_logit_softcapping),
        gguf_keys="attn_logit_softcapping final_logit_softcapping attention.sliding_window",
        gguf_fields=_gemma2_fields,
    ),
    Family(
        "gemma3_text",
        f"{_GEMMA_KEYS} rope_local_base_freq",
        norms=_GEMMA_NORMS,
        norm_offset=1.0,
        query_norm="head",
        windows=True,
        scales=_gemma3_scales,
        gguf="gemma3",
        gguf_keys="final_logit_softcapping rope.freq_base_swa "
        "attention.sliding_window attention.sliding_window_pattern",
        gguf_rope_base=1e6,
        gguf_fields=_gemma3_fields,
        gguf_complete=True,
    ),
)
FAMILIES: Mapping[str, Family] = {family.model_type: family for family in _ROWS}  # by transformers' type
OF_GGUF: Mapping[str, Family] = {family.gguf or family.model_type: family for family in _ROWS}
"""By llama.cpp's architecture."""
