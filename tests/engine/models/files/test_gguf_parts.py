"""A model in several GGUF files is read as one, whichever is named, and parts that are not of one model are refused."""

import shutil
from pathlib import Path

import pytest
import torch

from prolepsis.core.errors import ModelLoadError
from prolepsis.engine.models.files.gguf_file import GgufFile, part_paths
from prolepsis.engine.models.files.weights import open_checkpoint
from tests.engine.models.files.gguf_files import write_gguf, write_parts
from tests.engine.models.tiny import save_tiny


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    model = save_tiny(tmp_path / "model", "llama", {})
    write_gguf(tmp_path / "whole.gguf", model, "llama")
    paths = write_parts(tmp_path, model)
    assert len(paths) == 3
    return paths


def test_parts_are_one_model_whichever_is_named(parts: list[Path]) -> None:
    whole = open_checkpoint(parts[0].with_name("whole.gguf"), torch.float32)
    for path in parts:
        checkpoint = open_checkpoint(path, torch.float32)
        assert checkpoint.source == parts[0]
        assert checkpoint.config == whole.config
        assert sorted(checkpoint.tensors) == sorted(whole.tensors)
        for name in whole.tensors:
            assert torch.equal(checkpoint.tensor(name), whole.tensor(name))


def test_a_missing_part_is_named(parts: list[Path]) -> None:
    parts[1].unlink()
    for path in (parts[0], parts[2]):
        with pytest.raises(ModelLoadError, match=r"lacks m-00002-of-00003\.gguf: 1 of 3 parts"):
            GgufFile(path)


def test_a_part_by_another_name_is_refused(parts: list[Path]) -> None:
    other = parts[0].rename(parts[0].with_name("model.gguf"))
    with pytest.raises(ModelLoadError, match=r"one of 3 parts of a model .*NAME-00001-of-00003\.gguf"):
        GgufFile(other)
    shutil.copy(parts[2], parts[1])
    shutil.move(other, parts[0])
    with pytest.raises(ModelLoadError, match=r"says that it is part 3 of 3, .* expected: part 2 of 3"):
        GgufFile(parts[0])


def test_a_part_of_another_model_is_refused(parts: list[Path]) -> None:
    folder = parts[0].parent / "other"
    folder.mkdir()
    others = write_parts(folder, save_tiny(folder / "model", "llama", {"num_hidden_layers": 3}))
    shutil.copy(others[1], parts[1])
    with pytest.raises(ModelLoadError, match=r"m-00002-of-00003\.gguf says that it is part 2 of 4, of a model of 30"):
        GgufFile(parts[0])


def test_a_part_that_is_cut_off_is_named(parts: list[Path]) -> None:
    parts[1].write_bytes(parts[1].read_bytes()[:-40])
    with pytest.raises(ModelLoadError, match=r"m-00002-of-00003\.gguf is not a whole GGUF file"):
        GgufFile(parts[2])


def test_names_say_which_files_belong_together(tmp_path: Path) -> None:
    assert part_paths(tmp_path / "m.gguf") == [tmp_path / "m.gguf"]
    assert [path.name for path in part_paths(tmp_path / "a-00002-of-00002.gguf")] == [
        "a-00001-of-00002.gguf",
        "a-00002-of-00002.gguf",
    ]
    assert part_paths(tmp_path / "a-00003-of-00002.gguf") == [tmp_path / "a-00003-of-00002.gguf"]
