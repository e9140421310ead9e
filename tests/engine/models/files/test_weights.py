"""Folders of safetensors: whole ones give tensors, damaged ones an error that names the file."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from prolepsis.core.errors import ModelLoadError
from prolepsis.engine.models.files.safetensors_files import INDEX, WEIGHTS, homes
from prolepsis.engine.models.files.weights import open_checkpoint
from prolepsis.engine.models.targets.lean_shape import LeanShape
from prolepsis.engine.models.targets.lean_weights import WeightReader
from tests.engine.models.files.mutations import broken, fault_of, make_seeds
from tests.engine.models.tiny import save_tiny


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_tiny(tmp_path, "llama", {})
    return tmp_path


def test_tensors_come_in_bfloat16(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    assert checkpoint.tensor("model.norm.weight").dtype == torch.bfloat16
    assert checkpoint.config.hidden_size == 64
    with pytest.raises(ModelLoadError, match=r"no tensor 'model\.nothing'"):
        checkpoint.tensor("model.nothing")


def test_an_output_head_that_is_the_embedding_may_be_there_too(tmp_path: Path) -> None:
    save_tiny(tmp_path, "llama", {"tie_word_embeddings": True})
    tensors = load_file(tmp_path / WEIGHTS)
    embedding = tensors["model.embed_tokens.weight"]
    save_file({**tensors, "lm_head.weight": embedding.clone()}, tmp_path / WEIGHTS)
    open_checkpoint(tmp_path)
    save_file({**tensors, "lm_head.weight": embedding + 1}, tmp_path / WEIGHTS)
    with pytest.raises(ModelLoadError, match=r"lm_head\.weight differs from .* tie_word_embeddings"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("keep", [0, 4, 200, -100])
def test_a_cut_off_file_is_named(folder: Path, keep: int) -> None:
    file = folder / WEIGHTS
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(ModelLoadError, match=r"model\.safetensors is not a whole safetensors file"):
        open_checkpoint(folder)


def test_what_is_missing_is_named(folder: Path, tmp_path: Path) -> None:
    (folder / WEIGHTS).unlink()
    with pytest.raises(ModelLoadError, match=r"neither model\.safetensors"):
        open_checkpoint(folder)
    (folder / "config.json").write_text("{broken")
    with pytest.raises(ModelLoadError, match=r"config\.json"):
        open_checkpoint(folder)
    (folder / "config.json").write_text('{"model_type": "nobody-knows"}')
    with pytest.raises(ModelLoadError, match=r"config\.json"):
        open_checkpoint(folder)
    (folder / "config.json").unlink()
    with pytest.raises(ModelLoadError, match=r"no config\.json"):
        open_checkpoint(folder)
    with pytest.raises(ModelLoadError, match="does not exist"):
        open_checkpoint(tmp_path / "nowhere")
    (tmp_path / "model.bin").write_bytes(b"x")
    with pytest.raises(ModelLoadError, match="not a whole GGUF file"):
        open_checkpoint(tmp_path / "model.bin")


def test_a_tensor_of_another_shape_is_named(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"intermediate_size": 80}))
    checkpoint = open_checkpoint(folder)
    with pytest.raises(ModelLoadError, match=r"gate_proj.*\[96, 64\].*\[80, 64\]"):
        list(WeightReader(checkpoint, LeanShape.from_config(checkpoint.config), checkpoint.tensor).layers())


def test_end_tokens_join_both_configurations(folder: Path) -> None:
    (folder / "generation_config.json").write_text('{"eos_token_id": [7, 2]}')
    assert open_checkpoint(folder).eos_token_ids == (2, 7)
    (folder / "generation_config.json").write_text("7")
    with pytest.raises(ModelLoadError, match="generation_config"):
        _ = open_checkpoint(folder).eos_token_ids


@pytest.fixture
def whole(tmp_path: Path) -> dict[str, Tensor]:
    """The tensors of a model that `tmp_path` holds in two shards."""
    save_tiny(tmp_path, "llama", {})
    tensors = load_file(tmp_path / WEIGHTS)
    names = sorted(tensors)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, own in parts.items():
        save_file({name: tensors[name] for name in own}, tmp_path / file)
    write_index(tmp_path, {name: file for file, own in parts.items() for name in own})
    (tmp_path / WEIGHTS).unlink()
    return tensors


def write_index(folder: Path, weight_map: object) -> None:
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def index(folder: Path) -> dict[str, str]:
    found: dict[str, str] = json.loads((folder / INDEX).read_text())["weight_map"]
    return found


def test_shards_are_one_checkpoint(tmp_path: Path, whole: dict[str, Tensor]) -> None:
    sharded = open_checkpoint(tmp_path, torch.float32)
    assert sorted(sharded.tensors) == sorted(whole)
    assert all(torch.equal(sharded.tensor(name), tensor) for name, tensor in whole.items())


def test_a_missing_shard_is_named(tmp_path: Path, whole: dict[str, Tensor]) -> None:
    (tmp_path / "b.safetensors").unlink()
    with pytest.raises(ModelLoadError, match=r"lacks b\.safetensors"):
        homes(tmp_path)


def test_a_tensor_that_its_shard_lacks_is_named(tmp_path: Path, whole: dict[str, Tensor]) -> None:
    write_index(tmp_path, {**index(tmp_path), "model.more.weight": "a.safetensors"})
    with pytest.raises(ModelLoadError, match=r"a\.safetensors has no tensor 'model\.more\.weight', which"):
        homes(tmp_path)


def test_a_tensor_in_two_shards_is_named(tmp_path: Path, whole: dict[str, Tensor]) -> None:
    name = next(iter(load_file(tmp_path / "a.safetensors")))
    save_file({**load_file(tmp_path / "b.safetensors"), name: whole[name]}, tmp_path / "b.safetensors")
    with pytest.raises(ModelLoadError, match="both have the tensor"):
        homes(tmp_path)


def test_a_tensor_that_the_index_lacks_is_named(tmp_path: Path, whole: dict[str, Tensor]) -> None:
    more = {"model.more.weight": torch.ones(3)}
    save_file({**load_file(tmp_path / "b.safetensors"), **more}, tmp_path / "b.safetensors")
    with pytest.raises(ModelLoadError, match=r"1 tensors that .* does not name, first 'model\.more\.weight'"):
        homes(tmp_path)


@pytest.mark.parametrize(
    "weight_map", [None, [], {}, {"a": 1}, {"a": "../a.safetensors"}, {"a": "a.bin"}, {"a": ["a.safetensors"]}]
)
def test_an_index_that_is_none_is_named(tmp_path: Path, weight_map: object) -> None:
    write_index(tmp_path, weight_map)
    with pytest.raises(ModelLoadError, match=INDEX):
        homes(tmp_path)


def test_one_file_is_taken_before_shards(tmp_path: Path, whole: dict[str, Tensor]) -> None:
    save_file({"model.norm.weight": torch.ones(3)}, tmp_path / WEIGHTS)
    assert homes(tmp_path) == {"model.norm.weight": tmp_path / WEIGHTS}


def test_pickled_weights_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ModelLoadError, match=r"weights as pytorch_model\.bin, which is not read; allowed: safetensors"):
        homes(tmp_path)


NUM_CASES = 80
FOUND = (100645, 41687, 76108, 74801, 102663)
"""Seeds that once ended in another error than a refusal.

A tokenizer whose id makes its library panic; rows that heads cannot share (two); a scale below 0; a dimension of 0.
"""


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return make_seeds(tmp_path_factory.mktemp("seeds"))


def test_whole_files_load(seeds: list[Path]) -> None:
    for path in seeds:
        named = sorted(path.glob("*.gguf"))
        assert fault_of(named[0] if named else path, is_whole=True) is None


@pytest.mark.filterwarnings("default")  # libraries warn of what is broken
def test_broken_files_are_refused_or_load(seeds: list[Path], tmp_path: Path) -> None:
    for seed in dict.fromkeys([*FOUND, *range(NUM_CASES)]):
        fault = fault_of(broken(seeds, seed, tmp_path / str(seed)))
        assert fault is None, f"seed {seed}: {fault}"
