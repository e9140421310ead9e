"""A GGUF file as a `Checkpoint`: read here for the Llama-shaped family, by transformers otherwise."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from prolepsis.core.errors import ModelLoadError
from prolepsis.models.gguf_reader import GgufFile
from prolepsis.models.weights import Checkpoint

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

PERMUTED = ("llama",)
"""Architectures whose q and k rows llama.cpp interleaves: pair (i, i + d/2) of a head lies at (2i, 2i + 1)."""
FAMILY = {"llama": "llama", "mistral": "mistral", "qwen2": "qwen2", "qwen3": "qwen3"}

_ENDS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_ENDS_OF_TEXT = ("eos_token_id", "eot_token_id")
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


def open_gguf(path: Path, dtype: torch.dtype) -> Checkpoint:
    """Open a GGUF file; raises `ModelLoadError` where it is corrupt or of an architecture nobody here knows."""
    file = GgufFile(path)
    architecture = file.text("general.architecture")
    if architecture in FAMILY and not any("_exps" in name for name in file.tensors):
        config = _family_config(file, architecture)
        return Checkpoint(config, GgufTensors(file, config, dtype), path)
    return _other(path, architecture, dtype)


class GgufTensors(Mapping[str, Tensor]):
    """Tensors of a Llama-shaped GGUF file under transformers names, dequantised at each access."""

    def __init__(self, file: GgufFile, config: "PreTrainedConfig", dtype: torch.dtype) -> None:
        self._file = file
        self._dtype = dtype
        self._names = {to: name for name in file.tensors if (to := transformers_name(name)) is not None}
        self._heads: dict[str, int] = {}
        if file.text("general.architecture") in PERMUTED:
            self._heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}

    def __getitem__(self, name: str) -> Tensor:
        tensor = self._file.load(self._names[name])
        heads = self._heads.get(name.split(".")[-2])
        if heads is not None:
            tensor = unpermute(tensor, heads)
        return tensor.to(self._dtype)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def transformers_name(name: str) -> str | None:
    """Return the transformers name of GGUF tensor `name`, None for one that is no parameter (rope_freqs)."""
    if name in _ENDS:
        return _ENDS[name]
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
    if match is None or match[2] not in _LAYER:
        return None
    return f"model.layers.{match[1]}.{_LAYER[match[2]]}.{match[3]}"


def unpermute(tensor: Tensor, heads: int) -> Tensor:
    """Undo llama.cpp's interleaving of rotary pairs: row (2i + j) of a head goes to row (j * d / 2 + i)."""
    half = tensor.shape[0] // heads // 2
    return tensor.view(heads, half, 2, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)


def _family_config(file: GgufFile, architecture: str) -> "PreTrainedConfig":
    from transformers import AutoConfig

    hidden, heads = _field(file, "embedding_length"), _field(file, "attention.head_count")
    fields: dict[str, object] = {
        "vocab_size": file.tensors["token_embd.weight"].shape[0] if "token_embd.weight" in file.tensors else 0,
        "hidden_size": hidden,
        "num_hidden_layers": _field(file, "block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": file.metadata.get(f"{architecture}.attention.head_count_kv", heads),
        "head_dim": file.metadata.get(f"{architecture}.attention.key_length", hidden // heads),
        "intermediate_size": _field(file, "feed_forward_length"),
        "max_position_embeddings": _field(file, "context_length"),
        "rms_norm_eps": float(f"{file.metadata.get(f'{architecture}.attention.layer_norm_rms_epsilon', 1e-6):.6g}"),
        "rope_parameters": _rope(file, architecture),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "bos_token_id": file.integer("tokenizer.ggml.bos_token_id"),
        "eos_token_id": [end for key in _ENDS_OF_TEXT if (end := file.integer(f"tokenizer.ggml.{key}")) is not None],
    }
    if architecture == "mistral":
        fields["sliding_window"] = file.integer("mistral.attention.sliding_window")
    try:
        return AutoConfig.for_model(FAMILY[architecture], **fields)
    except Exception as error:  # configuration classes raise their own validation errors, of no common base
        raise ModelLoadError(f"{file.path}: its metadata is no usable {architecture} configuration: {error}") from error


def _field(file: GgufFile, key: str) -> int:
    full = f"{file.text('general.architecture')}.{key}"
    value = file.integer(full)
    if value is None:
        raise ModelLoadError(f"{file.path} lacks the metadata {full}")
    return value


def _rope(file: GgufFile, architecture: str) -> dict[str, object]:
    rope: dict[str, object] = {
        "rope_type": "default",
        "rope_theta": file.metadata.get(f"{architecture}.rope.freq_base", 10000.0),
    }
    scaling = file.text(f"{architecture}.rope.scaling.type", "none")
    if scaling == "linear":
        return rope | {"rope_type": "linear", "factor": file.metadata[f"{architecture}.rope.scaling.factor"]}
    if scaling != "none":
        raise ModelLoadError(f"{file.path}: rope scaling {scaling!r} is not read from GGUF; allowed: none, linear")
    if "rope_freqs.weight" in file.tensors:
        return _llama3_rope(file, rope)
    return rope


def _llama3_rope(file: GgufFile, rope: dict[str, object]) -> dict[str, object]:
    """Recover Llama 3's scaling from the divisors llama.cpp stores in its place, and check that they agree."""
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    divisors = file.load("rope_freqs.weight")
    found = rope | {
        "rope_type": "llama3",
        "factor": float(divisors.max()),
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    dim = 2 * divisors.numel()
    config = LlamaConfig(hidden_size=dim, num_attention_heads=1, head_dim=dim, rope_parameters=dict(found))
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    plain = 1.0 / torch.tensor(float(str(rope["rope_theta"]))) ** (torch.arange(0, dim, 2) / dim)
    if not torch.allclose(plain / divisors, scaled, rtol=1e-3):
        raise ModelLoadError(f"{file.path}: rope_freqs.weight is not Llama 3's scaling, the only one read from GGUF")
    return found


def _other(path: Path, architecture: str, dtype: torch.dtype) -> Checkpoint:
    """Let transformers read architectures outside the Llama-shaped family; all tensors are loaded at once."""
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.from_pretrained(str(path.parent), gguf_file=path.name)
        model = AutoModelForCausalLM.from_pretrained(str(path.parent), gguf_file=path.name, dtype=dtype)
    except Exception as error:  # whatever transformers makes of a foreign file, the caller needs one error
        raise ModelLoadError(f"{path}: architecture {architecture!r} cannot be loaded: {error}") from error
    return Checkpoint(config, dict(model.state_dict()), path)
