"""The configuration and the weights of a model in GGUF, under transformers' names."""

import math
import re
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from prolepsis.core.errors import ModelLoadError
from prolepsis.engine.models.families import OF_GGUF, Family, Fields
from prolepsis.engine.models.files.checkpoint import Checkpoint, Config, unread_tensors
from prolepsis.engine.models.files.config import LlamaShapedConfig, llama_shaped
from prolepsis.engine.models.files.gguf_file import LARGEST_SIZE, GgufFile
from prolepsis.engine.models.files.rope import rope_frequencies
from prolepsis.engine.models.files.stored import BF16, PACKED, LazyMapping, StoredMatrix

_ENDS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER = {
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
_FUSED = {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}

_QKV_BIASES = frozenset({"attn_q.bias", "attn_k.bias", "attn_v.bias"})
_ATTENTION_BIASES = _QKV_BIASES | {"attn_output.bias"}
_MLP_BIASES = frozenset({"ffn_gate.bias", "ffn_up.bias", "ffn_down.bias"})
_QUERY_NORMS = frozenset({"attn_q_norm.weight", "attn_k_norm.weight"})
_NEUTRAL: Mapping[str, float] = {
    **dict.fromkeys(("attention.clamp_kqv", "attention.max_alibi_bias", "attn_logit_softcapping", "expert_count"), 0),
    **dict.fromkeys(("final_logit_softcapping", "nextn_predict_layers"), 0),
    **dict.fromkeys(("attention.causal", "embedding_scale", "logit_scale", "residual_scale", "rope.scale_linear"), 1),
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


def family_of(file: GgufFile) -> Family:
    return OF_GGUF[file.text("general.architecture")]


def gguf_config(file: GgufFile) -> Config:
    """Return the configuration of a file of a known family; raises `ModelLoadError` for unusable metadata."""
    family, llama = family_of(file), _llama_fields(file)
    fields: dict[str, Any] = {"model_type": family.model_type, **llama, **family.gguf_fields(file, llama)}
    try:
        if family.defaults is not None:
            return llama_shaped(fields)
        if family.gguf_complete:
            return LlamaShapedConfig.model_validate(fields)
        from transformers import AutoConfig

        return AutoConfig.for_model(**fields)
    except Exception as error:  # configuration classes raise validation errors without a common base class
        name = file.text("general.architecture")
        raise ModelLoadError(f"{file.path}: its metadata is not a usable {name} configuration: {error}") from error


def transformers_name(name: str, family: Family) -> str | None:
    """Return the transformers name of GGUF tensor `name`, None for one that is no parameter of the family."""
    if name in _ENDS:
        return _ENDS[name]
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
    if match is None:
        return None
    part = f"{match[2]}.{match[3]}"
    biases = _ATTENTION_BIASES | _MLP_BIASES if family.gguf_biases else _QKV_BIASES if family.qkv_bias else frozenset()
    optional = biases | (_QUERY_NORMS if family.query_norm else frozenset())
    if part not in optional and (part in _QUERY_NORMS or match[3] == "bias"):
        return None
    norms = {
        "attn_norm": family.norms.before_attention,
        "post_attention_norm": family.norms.after_attention,
        "ffn_norm": family.norms.before_feed_forward,
        "post_ffw_norm": family.norms.after_feed_forward,
    }
    to = {**_LAYER, **norms, **(_FUSED if family.fused else {})}.get(match[2])
    return f"model.layers.{match[1]}.{to}.{match[3]}" if to else None


def refuse_unread(file: GgufFile) -> None:
    """Raise `ModelLoadError` for tensors and keys that are not read, and for numbers that would change the result."""
    name, family = file.text("general.architecture"), family_of(file)
    if file.size("block_count") > len(file.tensors):
        raise ModelLoadError(f"{file.path}: {len(file.tensors)} tensors for {file.size('block_count')} blocks")
    if unread := sorted(
        tensor for tensor in file.tensors.keys() - family.gguf_factors if transformers_name(tensor, family) is None
    ):
        raise ModelLoadError(f"{file.path}: {unread_tensors(unread, name)}")
    own_keys = set(family.gguf_keys.split())
    sizes = dict.fromkeys(("attention.value_length", "rope.dimension_count"), file.head_dim)
    neutral = {**_NEUTRAL, "attention.scale": file.head_dim**-0.5, **sizes}
    for key in sorted(set(neutral) - own_keys):
        value = file.float32(key, neutral[key])
        if value and not abs(value - neutral[key]) <= 1e-6 * abs(neutral[key]):  # NaN is none of them
            raise ModelLoadError(
                f"{file.path}: {file.own_key(key)} is {value:g}, which is not read here for architecture {name!r}; "
                f"allowed: {neutral[key]:g}"
            )
    known = {*_READ, *_HARMLESS, *neutral, *own_keys}
    if (file.optional_size(_WINDOW) or LARGEST_SIZE) >= file.size("context_length"):
        known.add(_WINDOW)
    for key in sorted(file.metadata):
        own = key.removeprefix(f"{name}.")
        if own != key and own not in known and not own.startswith(_BESIDE_THE_TEXT):
            raise ModelLoadError(
                f"{file.path}: {key} is {file.metadata[key]!r:.40}, which is not read here for architecture {name!r}"
            )


def _llama_fields(file: GgufFile) -> Fields:
    family, heads = family_of(file), file.size("attention.head_count")
    kv_heads = file.optional_size("attention.head_count_kv") or heads
    if kv_heads < 1 or heads % kv_heads:
        raise ModelLoadError(f"{file.path}: {heads} heads of queries are no multiple of {kv_heads} of keys")
    biases: Fields = {}
    if family.gguf_biases:
        parts = {name.partition(".")[2].partition(".")[2] for name in file.tensors}
        for name, kind in (("attention_bias", _ATTENTION_BIASES), ("mlp_bias", _MLP_BIASES)):
            if (present := parts & kind) and (missing := kind - parts):
                raise ModelLoadError(f"{file.path} has {min(present)} but not {min(missing)}: all or none are read")
            biases[name] = bool(present)
    return {
        "vocab_size": file.tensors["token_embd.weight"].shape[0] if "token_embd.weight" in file.tensors else 0,
        "hidden_size": file.size("embedding_length"),
        "num_hidden_layers": file.size("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": file.head_dim,
        "intermediate_size": file.size("feed_forward_length"),
        "max_position_embeddings": file.size("context_length"),
        "rms_norm_eps": file.number("attention.layer_norm_rms_epsilon"),
        "rope_parameters": _rope(file, family.gguf_rope_base),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "bos_token_id": file.integer("tokenizer.ggml.bos_token_id"),
        "eos_token_id": list(file.end_tokens()),
        "pad_token_id": file.integer("tokenizer.ggml.padding_token_id"),
        **biases,
    }


def _rope(file: GgufFile, default_base: float) -> Fields:
    rope: Fields = {"rope_type": "default", "rope_theta": file.float32("rope.freq_base", default_base)}
    scaling = file.text(file.own_key("rope.scaling.type"), "none")
    if scaling != "none" and "rope_freqs.weight" in file.tensors:
        raise ModelLoadError(
            f"{file.path} has both rope_freqs.weight and rope scaling {scaling!r}; one of them is read"
        )
    if scaling == "linear":
        return rope | {"rope_type": "linear", "factor": file.float32("rope.scaling.factor", 1.0)}
    if scaling != "none":
        raise ModelLoadError(f"{file.path}: rope scaling {scaling!r} is not read from GGUF; allowed: none, linear")
    if "rope_freqs.weight" not in file.tensors:
        return rope
    # llama.cpp stores divisors in place of Llama 3's scaling, which is recovered here and has to agree with them
    divisors = file.load("rope_freqs.weight")
    llama3 = rope | {
        "rope_type": "llama3",
        "factor": float(divisors.max()),
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    dim = 2 * divisors.numel()
    (plain, _), (scaled, _) = (rope_frequencies(setting, dim) for setting in (rope, llama3))
    if not torch.allclose(torch.tensor(plain) / divisors, torch.tensor(scaled), rtol=1e-3):
        raise ModelLoadError(f"{file.path}: rope_freqs.weight is not Llama 3's scaling, the only one read from GGUF")
    return llama3


def open_gguf(file: GgufFile, dtype: torch.dtype) -> Checkpoint:
    """Return configuration and tensors of a GGUF file; raises `ModelLoadError` for an unknown architecture."""
    architecture = file.text("general.architecture")
    if architecture in OF_GGUF and not any("_exps" in name for name in file.tensors):
        refuse_unread(file)
        config = gguf_config(file)
        weights = GgufWeights(file, config, dtype)
        return Checkpoint(config, weights.tensors, file.path, weights.matrices)
    if file.is_split:
        raise ModelLoadError(
            f"{file.path}: architecture {architecture!r} is read from one file only; join the parts first: "
            "llama-gguf-split --merge FIRST_PART WHOLE_FILE"
        )
    return _other(file, architecture, dtype)


class GgufWeights:
    """The tensors of a GGUF file of a known family under transformers names, read at each access."""

    def __init__(self, file: GgufFile, config: Config, dtype: torch.dtype) -> None:
        self._file = file
        self._dtype = dtype
        family = family_of(file)
        self._names = {to: name for name in file.tensors if (to := transformers_name(name, family)) is not None}
        self._norm_offset = family.norm_offset
        self._heads: dict[str, int] = {}
        if family.permuted:
            self._heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        return LazyMapping(self._names, self.tensor)

    @property
    def matrices(self) -> Mapping[str, StoredMatrix]:
        kinds = {to: self._file.tensors[name].kind for to, name in self._names.items()}
        return LazyMapping([name for name, kind in kinds.items() if kind in PACKED and kind != BF16], self.stored)

    def tensor(self, name: str) -> Tensor:
        loaded = self._in_order(name, self._file.load(self._names[name]))
        return (loaded - self._norm_offset if name.endswith("norm.weight") else loaded).to(self._dtype)

    def stored(self, name: str) -> StoredMatrix:
        """Return matrix `name` with the bytes of the file, where they lie in it: nothing may write to them."""
        entry = self._file.tensors[self._names[name]]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # torch has no tensors that cannot be written
            rows = torch.from_numpy(self._file.raw(self._names[name]).reshape(entry.shape[0], -1))
        return StoredMatrix(self._in_order(name, rows), entry.kind)

    def _in_order(self, name: str, rows: Tensor) -> Tensor:
        heads = self._heads.get(name.split(".")[-2])
        if heads is None:
            return rows
        if rows.shape[0] % (2 * heads):
            raise ModelLoadError(
                f"{self._file.path}: {self._names[name]} has {rows.shape[0]} rows; "
                f"allowed: a multiple of {2 * heads}, twice its {heads} heads"
            )
        return unpermute(rows, heads)


def unpermute(tensor: Tensor, heads: int) -> Tensor:
    """Undo llama.cpp's interleaving of rotary pairs: row (2i + j) of a head goes to row (j * d / 2 + i)."""
    half = tensor.shape[0] // heads // 2
    return tensor.view(heads, half, 2, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)


def _other(file: GgufFile, architecture: str, dtype: torch.dtype) -> Checkpoint:
    """Let transformers read architectures outside the known families; all tensors are loaded at once."""
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.modeling_gguf_pytorch_utils import TensorProcessor, get_gguf_hf_weights_map, load_gguf_checkpoint

    path = file.path
    try:
        config = AutoConfig.from_pretrained(str(path.parent), gguf_file=path.name)
        with torch.device("meta"):  # for the names of its parameters only
            names = AutoModelForCausalLM.from_config(config)
        loaded = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=names)["tensors"]
    except Exception as error:  # transformers raises many kinds of errors for such files; callers get one
        read = ", ".join(OF_GGUF)
        raise ModelLoadError(
            f"{path}: architecture {architecture!r}, which transformers cannot read: {error}; read here: {read}"
        ) from error
    tensors = {name: torch.as_tensor(tensor).to(dtype) for name, tensor in loaded.items()}
    held = sum(math.prod(entry.shape) for entry in file.tensors.values())
    if (taken := sum(tensor.numel() for tensor in tensors.values())) != held:
        known = get_gguf_hf_weights_map(names, TensorProcessor())
        unread = sorted(name for name in file.tensors if name not in known) or ["of a layer"]
        raise ModelLoadError(f"{path}: {unread_tensors(unread, architecture)}: {held - taken} of {held} weights")
    return Checkpoint(config, tensors, path)
