"""Which configurations the lean forward takes, and why it refuses the others."""

import pytest
from transformers import AutoConfig

from prolepsis.core.errors import ModelLoadError
from prolepsis.models.targets.lean_shape import LeanShape, lean_fault


def test_a_shape_holds_what_a_forward_needs() -> None:
    config = AutoConfig.for_model(
        "qwen3", hidden_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=32, tie_word_embeddings=True
    )
    shape = LeanShape.from_config(config)
    assert (shape.heads, shape.kv_heads, shape.head_dim) == (4, 2, 32)
    assert (len(shape.inv_freq), shape.inv_freq[0]) == (16, 1.0)
    assert (shape.qk_norm, shape.qkv_bias, shape.tied) == (True, False, True)


@pytest.mark.parametrize(
    ("kind", "fields", "reason"),
    [
        ("gemma3_text", {}, "architecture 'gemma3_text'"),
        ("llama", {"hidden_act": "gelu"}, "activation 'gelu'"),
        ("llama", {"attention_bias": True}, "biases"),
        ("mistral", {"sliding_window": 100, "max_position_embeddings": 200}, "sliding window of 100"),
        (
            "llama",
            {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
            "rope type 'dynamic'",
        ),
    ],
)
def test_what_it_cannot_run_is_said(kind: str, fields: dict[str, object], reason: str) -> None:
    config = AutoConfig.for_model(kind, **fields)
    assert reason in (lean_fault(config) or "")
    with pytest.raises(ModelLoadError, match=reason):
        LeanShape.from_config(config)


def test_a_window_beyond_the_context_is_no_window() -> None:
    assert lean_fault(AutoConfig.for_model("mistral", sliding_window=4096, max_position_embeddings=4096)) is None
