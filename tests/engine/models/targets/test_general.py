"""What the transformers forward refuses, with a reason, instead of serving it wrongly."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoConfig

from prolepsis.core.errors import ModelLoadError
from prolepsis.engine.models.files.checkpoint import Checkpoint
from prolepsis.engine.models.files.safetensors_files import WEIGHTS
from prolepsis.engine.models.files.weights import open_checkpoint
from prolepsis.engine.models.targets.general import FewRowsLinear, GeneralModel, general_fault, replace_linears
from prolepsis.engine.native.decoder import pick_decoder
from tests.engine.models.files.gguf_files import write_gguf
from tests.engine.models.kernels import NEEDS_KERNELS
from tests.engine.models.tiny import one, reference, run, save_tiny

CPU = torch.device("cpu")


def configured(kind: str, **fields: object) -> Checkpoint:
    return Checkpoint(AutoConfig.for_model(kind, **fields), {}, Path("somewhere"))


@pytest.mark.parametrize(
    ("checkpoint", "reason"),
    [
        (configured("t5"), "encoder-decoder"),
        (configured("qwen3_next"), "linear_attention"),
        (configured("llama", rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}), "dynamic"),
    ],
)
def test_models_that_cannot_be_exact_are_refused(checkpoint: Checkpoint, reason: str) -> None:
    assert reason in (general_fault(checkpoint) or "")
    with pytest.raises(ModelLoadError, match=reason):
        GeneralModel(checkpoint, "tiny", CPU, torch.float32)


def test_missing_weights_are_an_error_not_random_numbers(tmp_path: Path) -> None:
    save_tiny(tmp_path, "mixtral", {"num_local_experts": 4})
    tensors = load_file(tmp_path / WEIGHTS)
    tensors.pop("model.layers.1.self_attn.q_proj.weight")
    save_file(tensors, tmp_path / WEIGHTS, metadata={"format": "pt"})
    with pytest.raises(ModelLoadError, match="lacks or misshapes 1 tensors"):
        GeneralModel(open_checkpoint(tmp_path), "tiny", CPU, torch.float32)


def test_an_architecture_outside_the_attention_interface_is_refused(tmp_path: Path) -> None:
    save_tiny(tmp_path, "bloom", {"vocab_size": 64, "hidden_size": 32, "n_layer": 2, "n_head": 4})
    with pytest.raises(ModelLoadError):
        GeneralModel(open_checkpoint(tmp_path), "tiny", CPU, torch.float32)


@pytest.mark.parametrize("tied", [False, True])
def test_a_gguf_file_runs_through_its_class(tmp_path: Path, tied: bool) -> None:
    model = save_tiny(tmp_path / "model", "llama", {"tie_word_embeddings": tied})
    write_gguf(tmp_path / "m.gguf", model, "llama")
    target = GeneralModel(open_checkpoint(tmp_path / "m.gguf", torch.float32), "tiny", CPU, torch.float32)
    tokens = list(range(5, 25))
    found = run(target, target.make_cache(1), one(tokens, 0, [0]))
    torch.testing.assert_close(found, reference(model, tokens), rtol=1e-4, atol=1e-4)


def test_a_failed_step_leaves_no_step_behind(tmp_path: Path) -> None:
    save_tiny(tmp_path, "qwen3", {})
    target = GeneralModel(open_checkpoint(tmp_path, torch.float32), "tiny", CPU, torch.float32)
    cache = target.make_cache(1)
    expected = run(target, cache, one([5, 6], 0, [0]))
    with pytest.raises(IndexError):
        run(target, cache, one([5, 600], 0, [0]))
    torch.testing.assert_close(run(target, cache, one([5, 6], 0, [0])), expected)


pytestmark = NEEDS_KERNELS
SHAPES = [(576, 960, False), (1536, 576, True), (40, 7, True), (33, 100, False), (64, 32, True)]


def pair(inputs: int, outputs: int, *, bias: bool) -> tuple[nn.Linear, FewRowsLinear]:
    torch.manual_seed(3)
    linear = nn.Linear(inputs, outputs, bias=bias).bfloat16()
    module = pick_decoder().library
    return linear, FewRowsLinear(module, linear)


@pytest.mark.parametrize(("inputs", "outputs", "bias"), SHAPES)
@pytest.mark.parametrize("rows", [1, 2, 12, 13, 32, 100])
def test_matches_torch(inputs: int, outputs: int, bias: bool, rows: int) -> None:
    linear, ours = pair(inputs, outputs, bias=bias)
    x = torch.randn(rows, inputs).bfloat16()
    expected = nn.functional.linear(x.float(), linear.weight.float(), linear.bias.float() if bias else None)
    torch.testing.assert_close(ours(x).float(), expected, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(("inputs", "outputs", "bias"), SHAPES)
def test_a_row_has_the_same_bits_in_any_company_and_on_any_threads(inputs: int, outputs: int, bias: bool) -> None:
    _, ours = pair(inputs, outputs, bias=bias)
    x = torch.randn(40, inputs).bfloat16()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    alone = torch.cat([ours(row[None]) for row in x])
    torch.set_num_threads(threads)
    for rows in (2, 3, 8, 16, 17, 24, 32, 40):
        assert torch.equal(ours(x[:rows]), alone[:rows])


def test_leading_dimensions_stay() -> None:
    _, ours = pair(64, 32, bias=True)
    assert ours(torch.randn(2, 3, 64).bfloat16()).shape == (2, 3, 32)


def test_only_plain_bf16_linears_are_replaced() -> None:
    class Special(nn.Linear):
        pass

    model = nn.ModuleDict({"a": nn.Linear(4, 4).bfloat16(), "b": nn.Linear(4, 4), "c": Special(4, 4).bfloat16()})
    name = replace_linears(model)
    assert name is not None
    assert [type(m).__name__ for m in model.values()] == ["FewRowsLinear", "Linear", "Special"]
