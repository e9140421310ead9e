"""Configurations read here give the shapes that transformers' own classes give, whatever a file leaves out."""

from typing import Any

import pytest
import torch
from transformers import AutoConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from prolepsis.engine.models.files.config import READ_HERE, llama_shaped
from prolepsis.engine.models.files.rope import rope_frequencies
from prolepsis.engine.models.targets.lean_shape import LeanShape, lean_fault
from tests.engine.models.tiny import BASE, LLAMA3, LONGROPE, YARN

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
    assert shape_or_fault(ours.to_transformers()) == shape_or_fault(theirs)


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
