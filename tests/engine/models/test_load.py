"""Which forward a configuration leads to, and what is said when it is not the best one."""

import json
import shutil
import struct
from pathlib import Path

import gguf
import pytest
import torch
from safetensors.torch import load_file, save_file

from prolepsis.core.config import EngineConfig
from prolepsis.core.errors import MemoryPlanError, ModelLoadError
from prolepsis.engine.models.load import load_model, pick_device
from tests.engine.models.files.gguf_files import write_gguf
from tests.engine.models.kernels import NEEDS_KERNELS
from tests.engine.models.tiny import one, run, save_tiny
from tests.engine.text.test_tokenizer import byte_level


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    save_tiny(folder, "llama", {"vocab_size": 272})
    byte_level().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def mixtral(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mixtral")
    save_tiny(folder, "mixtral", {"num_local_experts": 4, "sliding_window": None, "vocab_size": 272})
    byte_level().save_pretrained(folder)
    return folder


def config(folder: Path, **fields: object) -> EngineConfig:
    return EngineConfig.model_validate({"model": str(folder), "device": "cpu", **fields})


def test_the_transformers_forward_can_be_asked_for(llama: Path) -> None:
    loaded = load_model(config(llama, forward="transformers"))
    assert loaded.model.info.forward.startswith("transformers")
    assert loaded.fallback is None
    assert loaded.model.info.eos_token_ids == (2, 1)
    assert len(loaded.fingerprint) == 16
    logits = run(loaded.model, loaded.model.make_cache(1), one([5, 6], 0, [0]))
    assert (logits.shape, logits.dtype) == ((2, 272), torch.float32)


def test_auto_takes_the_general_forward_where_the_lean_ones_cannot_go(mixtral: Path) -> None:
    loaded = load_model(config(mixtral))
    assert loaded.model.info.forward.startswith("transformers")
    assert loaded.fallback is not None
    assert "mixtral" in loaded.fallback
    assert loaded.model.info.num_experts == 4


@pytest.mark.parametrize("forward", ["native", "lean"])
def test_a_forward_that_cannot_run_the_model_is_refused(mixtral: Path, forward: str) -> None:
    with pytest.raises(ModelLoadError, match="mixtral"):
        load_model(config(mixtral, forward=forward))


def test_a_missing_model_is_named() -> None:
    with pytest.raises(ModelLoadError, match="nobody-knows"):
        load_model(EngineConfig.model_validate({"model": "nobody-knows"}))


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_cuda_that_is_not_there_is_refused() -> None:
    with pytest.raises(ModelLoadError, match="no CUDA device"):
        pick_device("cuda")
    assert pick_device("auto").type == "cpu"


@pytest.fixture
def wide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model that the native forward runs, and a cache directory of its own."""
    monkeypatch.setenv("PROLEPSIS_CACHE", str(tmp_path / "cache"))
    save_tiny(tmp_path / "wide", "llama", {"head_dim": 32, "vocab_size": 272})
    byte_level().save_pretrained(tmp_path / "wide")
    return tmp_path / "wide"


def logits(folder: Path, **fields: object) -> torch.Tensor:
    model = load_model(config(folder, **fields)).model
    return run(model, model.make_cache(1), one(list(range(3, 20)), 0, [0]))


@NEEDS_KERNELS
@pytest.mark.parametrize(("weights", "stored", "most"), [("q8", "q8_0", 0.06), ("q4", "q4_1 and q8_0", 0.3)])
def test_weights_are_quantised_once_and_kept(wide: Path, weights: str, stored: str, most: float) -> None:
    plain, found = logits(wide), logits(wide, weights=weights)
    assert 0 < (found - plain).std() < most * plain.std()
    (file,) = (wide.parent / "cache" / "quantised").glob("*.safetensors")
    assert file.name.endswith(f"-{weights}.safetensors")
    written = file.stat().st_mtime_ns
    again = load_model(config(wide, weights=weights))
    assert torch.equal(logits(wide, weights=weights), found), "the kept file gives the same weights"
    assert file.stat().st_mtime_ns == written
    assert f"{stored} weights" in again.model.info.forward
    assert again.identity == load_model(config(wide)).identity, "draft heads are trained for either"
    assert again.fingerprint != load_model(config(wide)).fingerprint


@NEEDS_KERNELS
def test_each_model_and_format_has_a_file_of_its_own(wide: Path) -> None:
    other = save_tiny(wide.parent / "other", "llama", {"head_dim": 32, "num_hidden_layers": 1, "vocab_size": 272})
    byte_level().save_pretrained(wide.parent / "other")
    assert other.config.num_hidden_layers == 1
    for folder in (wide, wide.parent / "other"):
        for weights in ("q8", "q4"):
            load_model(config(folder, weights=weights))
    assert len(list((wide.parent / "cache" / "quantised").glob("*.safetensors"))) == 4


@NEEDS_KERNELS
def test_a_part_of_a_file_left_by_a_killed_process_is_written_again(wide: Path) -> None:
    expected = logits(wide, weights="q8")
    (file,) = (wide.parent / "cache" / "quantised").glob("*.safetensors")
    file.rename(file.with_suffix(".part"))
    file.with_suffix(".part").write_bytes(b"cut off")
    assert torch.equal(logits(wide, weights="q8"), expected)


@NEEDS_KERNELS
def test_a_quantised_file_is_read_as_it_is_or_in_bf16_only(wide: Path) -> None:
    model = save_tiny(wide.parent / "model", "llama", {"head_dim": 32, "vocab_size": 272})
    file = wide.parent / "m.gguf"
    write_gguf(file, model, "llama", kind=gguf.GGMLQuantizationType.Q8_0)
    for weights in ("q8", "q4"):
        with pytest.raises(ModelLoadError, match=f"weights is '{weights}', but m.gguf is quantised already; allowed"):
            load_model(config(file, weights=weights))
    assert "q8_0 weights, int8 activations" in load_model(config(file)).model.info.forward
    assert "weights" not in load_model(config(file, weights="bf16")).model.info.forward


def test_quantised_weights_without_the_native_forward_are_refused(llama: Path, mixtral: Path) -> None:
    for folder, fields in ((mixtral, {}), (llama, {"forward": "lean"}), (llama, {"forward": "transformers"})):
        with pytest.raises(ModelLoadError, match="weights is 'q4', which only the native forward reads"):
            load_model(config(folder, weights="q4", **fields))


def test_32_bits_are_for_the_lean_forward_only(llama: Path, mixtral: Path) -> None:
    exact, usual = load_model(config(llama, weights="f32")), load_model(config(llama, forward="lean"))
    assert exact.model.info.forward == "lean (torch, float32)"
    assert exact.fingerprint != usual.fingerprint, "an answer of one is not continued by the other"
    for folder, fields in ((mixtral, {}), (llama, {"forward": "native"}), (llama, {"forward": "transformers"})):
        with pytest.raises(ModelLoadError, match="weights is 'f32', which only the forward lean computes with"):
            load_model(config(folder, weights="f32", **fields))


def test_weights_beyond_the_machine_are_refused_before_they_are_read(llama: Path, tmp_path: Path) -> None:
    folder = tmp_path / "huge"
    shutil.copytree(llama, folder)
    num_bytes = 1 << 42
    header = {"huge": {"dtype": "BF16", "shape": [1 << 20, 1 << 21], "data_offsets": [0, num_bytes]}}
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + num_bytes)  # a sparse file
    with pytest.raises(MemoryPlanError, match=r"4096GiB weights of .*huge \(weights\)"):
        load_model(config(folder))


@pytest.mark.parametrize(
    ("file", "fields", "named"),
    [
        ("config.json", {"attention_bias": True}, "lacks or misshapes 8 tensors, first .*bias"),
        ("config.json", {"eos_token_id": [2, 272]}, "a text ends with token 272, but the model has 272 rows"),
        ("generation_config.json", {"eos_token_id": 300}, "a text ends with token 300"),
        ("generation_config.json", {"eos_token_id": "</s>"}, "eos_token_id is '</s>'; expected: the id of a token"),
    ],
)
def test_ends_without_a_row_and_biases_without_a_tensor_are_refused(
    llama: Path, tmp_path: Path, file: str, fields: dict[str, object], named: str
) -> None:
    folder = shutil.copytree(llama, tmp_path / "model")
    stated = json.loads((folder / file).read_text()) if (folder / file).exists() else {}
    (folder / file).write_text(json.dumps({**stated, **fields}))
    with pytest.raises(ModelLoadError, match=named):
        load_model(config(folder))


def test_ids_that_nothing_uses_may_be_any(llama: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(llama, tmp_path / "model")
    stated = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**stated, "pad_token_id": 272, "bos_token_id": -1}))
    assert load_model(config(folder)).model.info.eos_token_ids == (2, 1)


def test_a_vocabulary_may_have_fewer_tokens_than_rows_not_more(tmp_path: Path) -> None:
    for rows in (262, 264):
        folder = tmp_path / str(rows)
        save_tiny(folder, "llama", {"vocab_size": rows})
        byte_level().save_pretrained(folder)
    load_model(config(tmp_path / "264"))
    with pytest.raises(ModelLoadError, match="its vocabulary has 263 tokens, but the model has 262 rows"):
        load_model(config(tmp_path / "262"))


def test_an_added_token_without_a_row_is_left(tmp_path: Path) -> None:
    tokenizer = byte_level()
    tokenizer.add_special_tokens({"pad_token": "[PAD]"})
    save_tiny(tmp_path, "llama", {"vocab_size": 263})
    tokenizer.save_pretrained(tmp_path)
    assert load_model(config(tmp_path)).tokenizer.encode("[PAD]") == [263]


def test_added_tokens_end_an_answer_by_name(tmp_path: Path) -> None:
    tokenizer = byte_level()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.add_tokens(["<|file_sep|>", "[PAD]"])
    save_tiny(tmp_path, "llama", {"vocab_size": 272})
    tokenizer.save_pretrained(tmp_path)
    assert load_model(config(tmp_path)).model.info.eos_token_ids == (2, 1, 264, 265)


@pytest.mark.parametrize("forward", ["auto", "transformers"])
def test_a_tensor_that_is_not_read_is_refused_by_name(llama: Path, tmp_path: Path, forward: str) -> None:
    folder = shutil.copytree(llama, tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    old = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}
    save_file({**tensors, **old}, folder / "model.safetensors", {"format": "pt"})
    load_model(config(folder, forward=forward))
    more = {"model.layers.0.self_attn.q_proj.bias": torch.ones(64)}
    save_file({**tensors, **more}, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelLoadError, match=r"tensor model\.layers\.0\.self_attn\.q_proj\.bias is not read here"):
        load_model(config(folder, forward=forward))
    del tensors["model.layers.1.mlp.down_proj.weight"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelLoadError, match=r"model\.layers\.1\.mlp\.down_proj\.weight"):
        load_model(config(folder, forward=forward))
