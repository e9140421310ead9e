"""Configurations read here give the shapes that transformers' own classes give, whatever a file leaves out."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from prolepsis.core.config import DEFAULT_MODEL, EngineConfig
from prolepsis.core.errors import ModelLoadError
from prolepsis.core.requests import SamplingDefaults
from prolepsis.engine.models.files.config import READ_HERE, for_transformers, llama_shaped
from prolepsis.engine.models.files.config_keys import refuse_sizes, refuse_unread
from prolepsis.engine.models.files.generation_config import FILE, generation_eos, generation_sampling
from prolepsis.engine.models.files.recommended_sampling import default_sampling
from prolepsis.engine.models.files.rope import rope_frequencies
from prolepsis.engine.models.files.weights import folder_config
from prolepsis.engine.models.targets.lean_shape import LeanShape, lean_fault
from tests.engine.models.tiny import BASE, GENERAL, LEAN, LLAMA3, LONGROPE, YARN, save_tiny

OPTIONAL = tuple(name for name in BASE if name != "vocab_size")
WINDOW = {"sliding_window": 100, "use_sliding_window": True, "max_window_layers": 0}
ROPES: dict[str, dict[str, Any]] = {
    "theta": {"rope_theta": 5e5},
    "old linear": {"rope_theta": 2e4, "rope_scaling": {"type": "linear", "factor": 4.0}},
    "linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 2e4, "factor": 4.0}},
    "llama3": {"rope_parameters": LLAMA3},
    "llama3 without its length": {
        "rope_theta": 1e4,
        "rope_scaling": {
            k: v for k, v in LLAMA3.items() if k not in ("original_max_position_embeddings", "rope_theta")
        },
    },
    "yarn": {"rope_parameters": YARN},
    "yarn with scales": {"rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.0, "truncate": False}},
    "yarn with a factor": {"rope_parameters": {**YARN, "attention_factor": 1.25, "beta_fast": 16}},
    "longrope": {"rope_parameters": {**LONGROPE, "factor": 3.0}},
    "dynamic": {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
    "partial": {"partial_rotary_factor": 0.5},
}


def shape_or_fault(config: Any) -> LeanShape | str:
    return lean_fault(config) or LeanShape.from_config(config)


def same(stated: dict[str, Any]) -> None:
    ours, theirs = llama_shaped(stated), AutoConfig.for_model(**stated)
    assert shape_or_fault(ours) == shape_or_fault(theirs)
    assert ours.eos_token_id == theirs.eos_token_id
    assert shape_or_fault(for_transformers(ours)) == shape_or_fault(theirs)


@pytest.mark.parametrize("left_out", [None, *OPTIONAL])
@pytest.mark.parametrize("kind", sorted(READ_HERE))
def test_defaults_are_those_of_transformers(kind: str, left_out: str | None) -> None:
    same({"model_type": kind, **{name: value for name, value in BASE.items() if name != left_out}})


@pytest.mark.parametrize("name", ["num_key_value_heads", "head_dim", "eos_token_id"])
def test_null_is_as_good_as_nothing(name: str) -> None:
    same({"model_type": "llama", **BASE, name: None})


@pytest.mark.parametrize(
    "changes",
    [
        WINDOW,
        {**WINDOW, "max_window_layers": 1},
        {"sliding_window": None},
        {"attention_bias": True},
        {"hidden_act": "gelu"},
    ],
)
@pytest.mark.parametrize("kind", sorted(READ_HERE))
def test_windows_biases_and_activations_are_seen(kind: str, changes: dict[str, Any]) -> None:
    same({"model_type": kind, **BASE, **changes})


@pytest.mark.parametrize("name", ROPES)
def test_rotation_is_read_in_every_spelling(name: str) -> None:
    same({"model_type": "llama", **BASE, **ROPES[name]})


@pytest.mark.parametrize("name", [name for name in ROPES if name not in ("dynamic", "partial", "theta")])
def test_frequencies_are_those_of_transformers_to_the_bit(name: str) -> None:
    config = AutoConfig.for_model(**{"model_type": "llama", **BASE, **ROPES[name]})
    rope = config.rope_parameters
    expected, scaling = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, torch.device("cpu"))
    assert rope_frequencies(rope, config.head_dim) == (tuple(expected.tolist()), scaling)


@pytest.mark.parametrize("fields", [{"hidden_size": "wide"}, {"num_attention_heads": 0}, {"model_type": "gemma"}])
def test_a_value_that_cannot_be_is_refused_by_name(fields: dict[str, Any]) -> None:
    (name,) = fields
    with pytest.raises(ValueError, match=name):
        llama_shaped({"model_type": "llama", **BASE, **fields})


CONFIG = Path("config.json")


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
    (tmp_path / CONFIG).write_text(json.dumps({**stated(kind), key: value}))
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
    refuse_unread(CONFIG, {**stated(), **changes}, frozenset())


@pytest.mark.parametrize("key", ["logit_scale", "sliding_window", "attn_logit_softcapping"])
def test_types_that_only_transformers_knows_are_asked_what_they_read(tmp_path: Path, key: str) -> None:
    save_tiny(tmp_path, "mixtral", {"num_local_experts": 4, "sliding_window": 64})
    found = json.loads((tmp_path / CONFIG).read_text())
    (tmp_path / CONFIG).write_text(json.dumps({**found, key: 40}))
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
    (tmp_path / CONFIG).write_text(json.dumps({**stated(kind), **changes}))
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
    (tmp_path / CONFIG).write_text(json.dumps({**stated(kind), **changes}))
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
        refuse_sizes(CONFIG, {**stated(), key: value})


def write(folder: Path, **document: object) -> Path:
    (folder / FILE).write_text(json.dumps(document))
    return folder


def test_a_folder_without_the_file_says_nothing(tmp_path: Path) -> None:
    assert generation_eos(tmp_path) == []
    assert generation_sampling(tmp_path) is None
    assert generation_sampling(tmp_path / "model.gguf") is None


def test_ends_are_one_token_or_several(tmp_path: Path) -> None:
    assert generation_eos(write(tmp_path, eos_token_id=2)) == [2]
    assert generation_eos(write(tmp_path, eos_token_id=[2, 3])) == [2, 3]
    assert generation_sampling(tmp_path) is None


def test_parameters_that_are_not_named_are_openais(tmp_path: Path) -> None:
    write(tmp_path, temperature=0.6, top_k=20, top_p=None, do_sample=True)
    assert generation_sampling(tmp_path) == SamplingDefaults(temperature=0.6, top_k=20, source=FILE)


@pytest.mark.parametrize(
    "document",
    [{"temperature": 7}, {"top_p": "high"}, {"top_k": [1]}, {"top_k": math.inf}, {"top_k": 2**31}, {"min_p": 10**400}],
)
def test_values_that_sampling_cannot_take_are_named(tmp_path: Path, document: dict[str, object]) -> None:
    with pytest.raises(ModelLoadError, match=FILE):
        generation_sampling(write(tmp_path, **document))


def test_an_invalid_file_is_named(tmp_path: Path) -> None:
    for text in ("[]", "nonsense"):
        (tmp_path / FILE).write_text(text)
        with pytest.raises(ModelLoadError, match="not a JSON object"):
            generation_sampling(tmp_path)


def test_the_default_models_recommendation_is_in_the_catalogue(tmp_path: Path) -> None:
    config = EngineConfig(model_dir=tmp_path)
    assert default_sampling(config) == SamplingDefaults(temperature=0.2, top_p=0.9, source="catalogue")
    folder = tmp_path / DEFAULT_MODEL
    folder.mkdir()
    manifest = {"name": DEFAULT_MODEL, "source": "s", "path": ".", "size": 1, "sha256": {}, "licence": None}
    (folder / "manifest.json").write_text(json.dumps({**manifest, "pulled_at": "2026-01-01"}))
    write(folder, temperature=0.5)
    assert default_sampling(config) == SamplingDefaults(temperature=0.5, source=FILE)


def test_a_setting_turns_recommendations_off(tmp_path: Path) -> None:
    folder = write(tmp_path, temperature=0.5)
    assert default_sampling(EngineConfig(model=str(folder))).temperature == 0.5
    assert default_sampling(EngineConfig(model=str(folder), default_sampling="openai")) == SamplingDefaults()
