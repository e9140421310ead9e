"""Yardsticks: a twin computes the function of its model, and each name leads to a file."""

from pathlib import Path

import gguf
import pytest
import torch

from benchmarks import yardsticks
from benchmarks.yardsticks import CODER, CODER_FILE, TWINS, file_of, label, write_twin
from prolepsis.core.errors import ConfigError
from prolepsis.engine.models.files.weights import open_checkpoint
from prolepsis.engine.models.targets.general import GeneralModel
from tests.engine.models.files.gguf_files import write_gguf
from tests.engine.models.tiny import one, run, save_tiny


def written(folder: Path, kind: gguf.GGMLQuantizationType) -> Path:
    write_gguf(folder / "m.gguf", save_tiny(folder / "model", "llama", {}), "llama", kind=kind)
    return folder / "m.gguf"


@pytest.mark.parametrize("kind", [gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.Q4_1])
def test_a_twin_is_wider_and_computes_the_same(tmp_path: Path, kind: gguf.GGMLQuantizationType) -> None:
    source, twin = written(tmp_path, kind), tmp_path / "twin.gguf"
    write_twin(source, twin, 256, "twin")
    found = []
    for file in (source, twin):
        model = GeneralModel(open_checkpoint(file, torch.float32), "tiny", torch.device("cpu"), torch.float32)
        found.append(run(model, model.make_cache(1), one(list(range(5, 25)), 0, [0])))
    assert torch.allclose(found[0], found[1], atol=1e-5)
    shapes = {each.name: tuple(each.shape) for each in gguf.GGUFReader(twin).tensors}
    assert shapes["blk.1.ffn_up.weight"] == shapes["blk.1.ffn_gate.weight"] == (64, 256)
    assert shapes["blk.1.ffn_down.weight"] == (256, 64)


@pytest.mark.parametrize("width", [96, 300])
def test_a_width_that_is_none_is_refused(tmp_path: Path, width: int) -> None:
    source = written(tmp_path, gguf.GGMLQuantizationType.F32)
    with pytest.raises(ConfigError, match=f"width is {width}; allowed: multiples of 256 above 96"):
        write_twin(source, tmp_path / "twin.gguf", width, "twin")


def test_a_twin_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = written(tmp_path, gguf.GGMLQuantizationType.F32)
    monkeypatch.setenv("PROLEPSIS_CACHE", str(tmp_path))
    monkeypatch.setattr(yardsticks, "resolve", lambda name: source)
    monkeypatch.setitem(TWINS, "twin-1b", 256)
    made = file_of("twin-1b")
    source.unlink()
    assert file_of("twin-1b") == made
    assert made.exists()


def test_the_coder_model_is_the_file_that_a_variable_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CODER_FILE, "/models/coder.gguf")
    assert file_of(CODER) == Path("/models/coder.gguf")
    monkeypatch.delenv(CODER_FILE)
    with pytest.raises(ConfigError, match=f"{CODER_FILE} names no file"):
        file_of(CODER)


def test_an_unknown_name_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(ConfigError, match=r"allowed: coder, twin-0\.5b, twin-1b, twin-3b"):
        file_of("twin-7b")


def test_a_twin_is_called_by_what_it_answers_and_what_it_costs() -> None:
    assert label("smollm2-135m-twin-1b") == "answers of SmolLM2-135M at the cost of a 1-billion model"
    assert label("qwen2.5-coder-1.5b") == "qwen2.5-coder-1.5b"
