"""Keys of config.json that a family does not read are refused by name where they would change what it computes."""

import json
from pathlib import Path
from typing import Any

import pytest

from prolepsis.core.errors import ModelLoadError
from prolepsis.engine.models.files.config_keys import refuse_sizes, refuse_unread
from prolepsis.engine.models.files.weights import folder_config
from tests.engine.models.tiny import BASE, GENERAL, LEAN, save_tiny

FILE = Path("config.json")


def stated(kind: str = "llama", **changes: object) -> dict[str, Any]:
    return {"model_type": kind, **BASE, **changes}


@pytest.mark.parametrize("name", [*LEAN, *(f"general {name}" for name in GENERAL)])
def test_what_transformers_writes_is_read(tmp_path: Path, name: str) -> None:
    kind, changes = GENERAL[name.removeprefix("general ")] if name.startswith("general ") else LEAN[name]
    save_tiny(tmp_path, kind, changes)
    assert folder_config(tmp_path).model_type == kind


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        ("llama", "sliding_window", 64),
        ("llama", "attn_logit_softcapping", 30.0),
        ("llama", "logits_scaling", 8.0),
        ("llama", "embedding_multiplier", 12.0),
        ("llama", "attention_multiplier", 0.1),
        ("llama", "query_pre_attn_scalar", 24),
        ("llama", "use_qk_norm", True),
        ("llama", "quantization_config", {"quant_method": "gptq", "bits": 4}),
        ("llama", "num_local_experts", 8),
        ("llama", "layer_types", ["sliding_attention", "full_attention"]),
        ("llama", "no_rope_layers", [1, 0]),
        ("mistral", "attention_bias", True),
        ("qwen2", "attention_bias", True),
        ("qwen3", "final_logit_softcapping", 30.0),
        ("smollm3", "partial_rotary_factor", 0.5),
        ("granite", "sliding_window", 64),
        ("olmo2", "clip_qkv", 8.0),
        ("gemma3_text", "attn_logit_softcapping", 50.0),
    ],
)
def test_a_key_that_is_not_read_is_refused_by_name(tmp_path: Path, kind: str, key: str, value: object) -> None:
    (tmp_path / FILE).write_text(json.dumps({**stated(kind), key: value}))
    with pytest.raises(ModelLoadError, match=f"{key} is .*, which is not read here for model_type '{kind}'"):
        folder_config(tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"sliding_window": None, "attn_logit_softcapping": None, "quantization_config": None},
        {"sliding_window": 512},
        {"sliding_window": 64, "use_sliding_window": False},
        {"attention_multiplier": 0.25, "query_pre_attn_scalar": 16, "logit_scale": 1.0},
        {"layer_types": ["full_attention"] * 2, "no_rope_layers": [1, 1]},
        {"attention_bias": False, "pretraining_tp": 1, "torch_dtype": "bfloat16", "what_nobody_knows": 7},
    ],
)
def test_values_that_change_nothing_are_taken(changes: dict[str, object]) -> None:
    refuse_unread(FILE, {**stated(), **changes}, frozenset())


@pytest.mark.parametrize("key", ["logit_scale", "sliding_window", "attn_logit_softcapping"])
def test_types_that_only_transformers_knows_are_asked_what_they_read(tmp_path: Path, key: str) -> None:
    save_tiny(tmp_path, "mixtral", {"num_local_experts": 4, "sliding_window": 64})
    found = json.loads((tmp_path / FILE).read_text())
    (tmp_path / FILE).write_text(json.dumps({**found, key: 40}))
    if key == "sliding_window":
        folder_config(tmp_path)
        return
    with pytest.raises(ModelLoadError, match=f"{key} is 40, which is not read here for model_type 'mixtral'"):
        folder_config(tmp_path)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("gpt_neox", {"rotary_pct": 0.5}),
        ("phi", {"partial_rotary_factor": 0.25, "qk_layernorm": False}),
        ("stablelm", {"partial_rotary_factor": 0.5}),
        ("glm4", {"partial_rotary_factor": 0.25, "attention_bias": True}),
        ("nemotron", {"partial_rotary_factor": 0.25}),
        ("gemma", {"hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh"}),
        ("hunyuan_v1_dense", {"use_qk_norm": True}),
    ],
)
def test_keys_of_published_models_that_only_transformers_reads_are_taken(
    tmp_path: Path, kind: str, changes: dict[str, object]
) -> None:
    (tmp_path / FILE).write_text(json.dumps({**stated(kind), **changes}))
    assert folder_config(tmp_path).model_type == kind


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("mixtral", {"partial_rotary_factor": 0.5}),
        ("stablelm", {"rotary_pct": 0.5}),
        ("gemma", {"hidden_act": "gelu", "hidden_activation": "gelu_pytorch_tanh"}),
    ],
)
def test_keys_that_a_class_of_transformers_leaves_aside_are_refused(
    tmp_path: Path, kind: str, changes: dict[str, object]
) -> None:
    (tmp_path / FILE).write_text(json.dumps({**stated(kind), **changes}))
    with pytest.raises(ModelLoadError, match="is not read here"):
        folder_config(tmp_path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_hidden_layers", 10**12),
        ("head_dim", 0),
        ("vocab_size", -1),
        ("hidden_size", 1e300),
        ("query_pre_attn_scalar", -1),  # its root would make every weight of the attention a complex number
    ],
)
def test_sizes_that_no_model_has_are_refused(key: str, value: float) -> None:
    with pytest.raises(ModelLoadError, match=f"{key} is .*; allowed: 1 to"):
        refuse_sizes(FILE, {**stated(), key: value})
