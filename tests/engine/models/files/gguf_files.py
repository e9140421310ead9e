"""Writes small GGUF files: a model's weights as llama.cpp lays them out, and a vocabulary."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
from torch import Tensor
from transformers import PreTrainedModel

from prolepsis.engine.models.families import OF_GGUF
from prolepsis.engine.models.files.gguf import transformers_name
from tests.engine.models.files.vocabularies import TEMPLATE_KEY, Fields, plain_fields, write_fields

TEMPLATE = "{% for m in messages %}<s>{{ m['role'] }}: {{ m['content'] }}</s>{% endfor %}"


def permute(tensor: Tensor, heads: int) -> Tensor:
    """What llama.cpp's converter does to q and k rows of the llama architecture."""
    half = tensor.shape[0] // heads // 2
    return tensor.view(heads, 2, half, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)


def write_gguf(
    path: Path,
    model: PreTrainedModel,
    architecture: str,
    *,
    pre: str = "smollm",
    extra: dict[str, Tensor] | None = None,
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    changes: dict[str, float | str | list[str]] | None = None,
    tokenizer: Fields | None = None,
    split: int = 0,
) -> None:
    """Write `model` as llama.cpp's converter does, with matrices quantised as `kind` and `changes` of its metadata.

    `split`: tensors in one of several files; 0: one file.
    """
    writer = gguf.GGUFWriter(path, architecture, split_max_tensors=split)
    _write_metadata(writer, model.config)
    write_fields(writer, tokenizer or plain_fields() | {"tokenizer.ggml.pre": pre, TEMPLATE_KEY: TEMPLATE})
    _write_family_metadata(writer, model.config, architecture)
    _change(writer, changes or {})
    permuted = architecture in ("llama", "granite", "smollm3")
    tied = model.config.tie_word_embeddings
    state = {k: v for k, v in model.state_dict().items() if not (tied and k == "lm_head.weight")}
    for name in _gguf_names(model.config.num_hidden_layers):
        ours = transformers_name(name, OF_GGUF[architecture])
        if ours is None or ours not in state:
            continue
        tensor = state[ours]
        if permuted and "attn_q." in name:
            tensor = permute(tensor, model.config.num_attention_heads)
        if permuted and "attn_k." in name:
            tensor = permute(tensor, model.config.num_key_value_heads)
        if "gemma" in architecture and ours.endswith("norm.weight"):
            tensor = tensor + 1
        values = tensor.float().numpy()
        if values.ndim == 2 and kind != gguf.GGMLQuantizationType.F32:
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, np.ascontiguousarray(values))
    for name, tensor in (extra or {}).items():
        writer.add_tensor(name, tensor.float().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_parts(folder: Path, model: PreTrainedModel) -> list[Path]:
    """Write a Llama in several files, and return them in their order."""
    write_gguf(folder / "m.gguf", model, "llama", split=8)
    return sorted(folder.glob("m-*.gguf"))


def _change(writer: gguf.GGUFWriter, changes: dict[str, float | str | list[str]]) -> None:
    """Write numbers, texts, and lists of texts, in place of those of the same keys; an empty list removes its key."""
    for key, value in changes.items():
        for shard in writer.kv_data:
            shard.pop(key, None)
        if isinstance(value, list) and value:
            writer.add_array(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif not isinstance(value, list):
            kind = gguf.GGUFValueType.UINT32 if isinstance(value, int) else gguf.GGUFValueType.FLOAT32
            writer.add_key_value(key, value, kind)


def _gguf_names(layers: int) -> list[str]:
    parts = (
        "attn_norm post_attention_norm ffn_norm post_ffw_norm attn_q attn_k attn_v attn_qkv attn_output "
        "attn_q_norm attn_k_norm ffn_gate ffn_up ffn_down"
    )
    inner = [f"blk.{i}.{p}.{end}" for i in range(layers) for p in parts.split() for end in ("weight", "bias")]
    return ["token_embd.weight", "output_norm.weight", "output.weight", *inner]


def _write_metadata(writer: gguf.GGUFWriter, config: object) -> None:
    def get(name: str) -> int:
        value = getattr(config, name)
        assert isinstance(value, int)
        return value

    writer.add_block_count(get("num_hidden_layers"))
    writer.add_context_length(get("max_position_embeddings"))
    writer.add_embedding_length(get("hidden_size"))
    writer.add_feed_forward_length(get("intermediate_size"))
    writer.add_head_count(get("num_attention_heads"))
    writer.add_head_count_kv(get("num_key_value_heads"))
    writer.add_key_length(getattr(config, "head_dim", None) or get("hidden_size") // get("num_attention_heads"))
    writer.add_layer_norm_rms_eps(float(getattr(config, "rms_norm_eps")))  # noqa: B009
    rope = getattr(config, "rope_parameters")  # noqa: B009
    rope = rope.get("full_attention", rope)
    writer.add_rope_freq_base(float(rope["rope_theta"]))
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])


def _write_family_metadata(writer: gguf.GGUFWriter, config: Any, architecture: str) -> None:
    if window := getattr(config, "sliding_window", None):
        writer.add_sliding_window(window)
    if architecture == "gemma3":
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config.layer_types])
    if architecture == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
    if "gemma" in architecture and config.final_logit_softcapping:
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if architecture == "granite":
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)
    if architecture == "phi3":
        head_dim = config.hidden_size // config.num_attention_heads
        writer.add_rope_dimension_count(int(head_dim * config.rope_parameters["partial_rotary_factor"]))
        writer.add_rope_scaling_orig_ctx_len(config.original_max_position_embeddings)
