"""Folders of safetensors: whole ones give tensors, damaged ones an error that names the file."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from prolepsis.core.errors import ModelLoadError
from prolepsis.engine.models.files.safetensors_files import WEIGHTS
from prolepsis.engine.models.files.weights import open_checkpoint
from prolepsis.engine.models.targets.lean_shape import LeanShape
from prolepsis.engine.models.targets.lean_weights import WeightReader
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
