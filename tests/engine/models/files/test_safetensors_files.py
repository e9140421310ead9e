"""Shards of safetensors are one model, and what does not fit their index is refused by name."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from prolepsis.core.errors import ModelLoadError
from prolepsis.engine.models.files.safetensors_files import INDEX, WEIGHTS, homes
from prolepsis.engine.models.files.weights import open_checkpoint
from tests.engine.models.tiny import save_tiny


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
