"""Levels beside a head: kept exactly, refused where broken, left alone where the head's weights changed."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from prolepsis.core.errors import ModelLoadError
from prolepsis.engine.models.heads.format import CONFIG, WEIGHTS
from prolepsis.engine.models.heads.levels import LEVELS, load_levels, save_levels
from tests.engine.models.random_heads import levels_report, random_levels, save_random_head
from tests.training.documents import SHAPE


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_random_head(tmp_path / "head", SHAPE)


def test_levels_are_read_as_written(folder: Path) -> None:
    before = (folder / WEIGHTS).read_bytes()
    weights = random_levels(SHAPE.hidden, count=2)
    save_levels(folder, weights, {"settings": {"rate": 0.5}})
    found = load_levels(folder, SHAPE.hidden)
    assert found is not None
    assert all(torch.equal(tensor, weights.tensors()[name]) for name, tensor in found.tensors().items())
    assert (found.count, found.width) == (2, 32)
    assert levels_report(folder) == {"settings": {"rate": 0.5}}
    assert (folder / WEIGHTS).read_bytes() == before
    assert sorted(file.name for file in folder.iterdir()) == [CONFIG, "levels", WEIGHTS]
    assert [*(folder / "levels").iterdir()] == [folder / LEVELS]


def test_a_head_without_levels_has_none(folder: Path) -> None:
    assert load_levels(folder, SHAPE.hidden) is None
    assert levels_report(folder) == {}


def test_levels_of_other_weights_are_not_used(folder: Path) -> None:
    save_levels(folder, random_levels(SHAPE.hidden), {})
    tensors = load_file(folder / WEIGHTS)
    tensors["norm.weight"] += 1
    save_file(tensors, folder / WEIGHTS)
    assert load_levels(folder, SHAPE.hidden) is None


def test_an_invalid_levels_file_is_named(folder: Path) -> None:
    save_levels(folder, random_levels(SHAPE.hidden), {})
    with pytest.raises(ModelLoadError, match="is \\["):
        load_levels(folder, 2 * SHAPE.hidden)
    (folder / LEVELS).write_bytes((folder / LEVELS).read_bytes()[:-10])
    with pytest.raises(ModelLoadError, match=LEVELS):
        load_levels(folder, SHAPE.hidden)
    (folder / LEVELS).unlink()
    save_file({"enter": torch.zeros(1)}, folder / LEVELS)
    with pytest.raises(ModelLoadError, match=LEVELS):
        load_levels(folder, SHAPE.hidden)
