"""Exported models: what transformers loads from the folder is the model, and its tokenizer."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from prolepsis.core.errors import ModelLoadError
from prolepsis.engine.models.files.export import export_model
from prolepsis.engine.models.files.tokenizer_files import load_tokenizer
from prolepsis.engine.models.files.weights import open_checkpoint
from tests.engine.models.files.gguf_files import write_gguf
from tests.engine.models.files.vocabularies import plain_fields, tokens_of
from tests.engine.models.tiny import save_tiny

CHANGES: dict[str, object] = {"vocab_size": len(tokens_of(plain_fields()))}
MESSAGES = [{"role": "user", "content": "hello world"}]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    model = save_tiny(tmp_path / "tiny", "llama", CHANGES)
    write_gguf(tmp_path / "model.gguf", model, "llama")
    return tmp_path / "model.gguf"


def test_a_gguf_file_becomes_a_folder_that_transformers_loads(source: Path, tmp_path: Path) -> None:
    folder = export_model(source, tmp_path / "out" / "tiny")
    model = AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.bfloat16)
    checkpoint = open_checkpoint(source)
    state = model.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in checkpoint.tensors.items())
    assert tuple(model.generation_config.eos_token_id) == checkpoint.eos_token_ids
    theirs = AutoTokenizer.from_pretrained(str(folder))
    ours = load_tokenizer(source)
    assert theirs("hello world")["input_ids"] == ours.encode("hello world")
    assert theirs.apply_chat_template(MESSAGES, return_dict=False) == ours.apply_chat_template(MESSAGES)
    assert load_tokenizer(folder).fingerprint == ours.fingerprint


def test_a_folder_that_is_there_is_kept_and_a_half_one_never_appears(source: Path, tmp_path: Path) -> None:
    folder = export_model(source, tmp_path / "out")
    (folder / "mark").touch()
    assert export_model(source, folder) == folder
    assert (folder / "mark").exists()
    with pytest.raises(ModelLoadError):
        export_model(tmp_path / "none.gguf", tmp_path / "other")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.gguf", "out", "tiny"]


def test_a_foreign_folder_is_not_taken_for_an_export(source: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    with pytest.raises(ModelLoadError, match="is not a model"):
        export_model(source, tmp_path / "mine")


def test_tensors_that_do_not_fit_are_named(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    save_tiny(tmp_path / "tiny", "llama", CHANGES)
    file = tmp_path / "tiny" / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.norm.weight"]
    save_file(tensors, file)
    with pytest.raises(ModelLoadError, match=r"model\.norm\.weight"):
        export_model(tmp_path / "tiny", tmp_path / "out")
