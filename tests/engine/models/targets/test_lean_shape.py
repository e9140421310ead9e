"""Which configurations the lean forward takes, and why it refuses the others."""

import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig

from prolepsis.core.errors import ModelLoadError
from prolepsis.engine.models.targets.lean_shape import LeanShape, Rope, lean_fault
from prolepsis.engine.models.targets.native import angles
from tests.engine.models.tiny import save_tiny


def test_a_shape_holds_what_a_forward_needs() -> None:
    config = AutoConfig.for_model(
        "qwen3", hidden_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=32, tie_word_embeddings=True
    )
    shape = LeanShape.from_config(config)
    assert (shape.heads, shape.kv_heads, shape.head_dim) == (4, 2, 32)
    assert (len(shape.rope.inv_freq), shape.rope.inv_freq[0]) == (16, 1.0)
    assert (shape.query_norm, shape.qkv_bias, shape.tied) == ("head", False, True)


def test_layers_differ_in_window_and_rotation() -> None:
    shape = LeanShape.from_config(AutoConfig.for_model("gemma3_text", num_hidden_layers=12))
    local, full = shape.layers[0], shape.layers[5]
    assert [layer is full or layer == full for layer in shape.layers] == [False] * 5 + [True] + [False] * 5 + [True]
    assert (local.window, full.window) == (4096, None)
    assert shape.ropes == (local.rope, full.rope)
    assert (local.activation, local.score_scale) == ("gelu_pytorch_tanh", 256**-0.5)
    assert shape.norms.after_attention == "post_attention_layernorm"


def test_layers_without_rotation_and_multipliers() -> None:
    smollm3 = LeanShape.from_config(AutoConfig.for_model("smollm3", num_hidden_layers=8))
    assert [layer.rope is None for layer in smollm3.layers] == ([False] * 3 + [True]) * 2
    granite = LeanShape.from_config(
        AutoConfig.for_model("granite", attention_multiplier=0.5, residual_multiplier=0.25, logits_scaling=8.0)
    )
    assert (granite.layers[0].score_scale, granite.layers[0].residual_scale, granite.logit_scale) == (0.5, 0.25, 0.125)


def test_longrope_is_served_as_far_as_it_depends_on_one_sequence_only() -> None:
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.5] * 48, "long_factor": [2.0] * 48}
    config = AutoConfig.for_model(
        "phi3", max_position_embeddings=131072, rope_parameters=rope | {"original_max_position_embeddings": 4096}
    )
    shape = LeanShape.from_config(config)
    assert (shape.max_positions, len(shape.rope.inv_freq)) == (4096, 48)
    assert shape.rope.inv_freq[0] == pytest.approx(1 / 1.5)
    assert shape.rope.scaling > 1.0


@pytest.mark.parametrize(
    ("kind", "fields", "reason"),
    [
        ("gpt_oss", {}, "architecture 'gpt_oss'"),
        ("gemma3_text", {"use_bidirectional_attention": True}, "not causal"),
        ("qwen3", {"layer_types": ["chunked_attention"], "num_hidden_layers": 1}, "layers of type chunked_attention"),
        ("llama", {"hidden_act": "gelu"}, "activation 'gelu'"),
        ("llama", {"attention_bias": True}, "biases"),
        (
            "llama",
            {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
            "rope type 'dynamic'",
        ),
    ],
)
def test_unsupported_models_are_refused_with_the_reason(kind: str, fields: dict[str, object], reason: str) -> None:
    config = AutoConfig.for_model(kind, **fields)
    assert reason in (lean_fault(config) or "")
    with pytest.raises(ModelLoadError, match=reason):
        LeanShape.from_config(config)


def test_a_window_beyond_the_context_is_ignored() -> None:
    config = AutoConfig.for_model("mistral", sliding_window=4096, max_position_embeddings=4096)
    assert {layer.window for layer in LeanShape.from_config(config).layers} == {None}
    config = AutoConfig.for_model("mistral", sliding_window=4095, max_position_embeddings=4096)
    assert {layer.window for layer in LeanShape.from_config(config).layers} == {4095}


def test_angles_are_rounded_once() -> None:
    rope = Rope((1.0, 0.3, 1e-4), scaling=1.5)
    cosine, sine = angles(rope, 300)
    scaling = torch.tensor(1.5)
    for position in range(300):
        for i, inv_freq in enumerate(torch.tensor(rope.inv_freq)):
            angle = float(torch.tensor(float(position)) * inv_freq)
            assert cosine[position, i] == torch.tensor(math.cos(angle)) * scaling
            assert sine[position, i] == torch.tensor(math.sin(angle)) * scaling


PROGRAM = """
import sys
from pathlib import Path
from prolepsis.engine.models.files.source import open_model
from prolepsis.engine.models.files.weights import open_checkpoint
from prolepsis.engine.models.targets.lean_shape import LeanShape
from prolepsis.engine.models.targets.lean_weights import check_names

checkpoint = open_checkpoint(open_model(Path(sys.argv[1])))
check_names(checkpoint, LeanShape.from_config(checkpoint.config))
print([name for name in ("torch._dynamo", "transformers") if name in sys.modules])
"""


def test_names_are_checked_without_torchs_compiler(tmp_path: Path) -> None:
    """It takes seconds to import, and a start needs nothing of it; a family with biases joins vectors."""
    save_tiny(tmp_path, "qwen2", {"head_dim": None})
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"
