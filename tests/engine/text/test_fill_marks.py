"""The marks for filling the middle: as a file states them, by their names, and in another process."""

from pathlib import Path

from prolepsis.engine.models.files.gguf_file import CONTROL, GgufFile
from prolepsis.engine.models.files.gguf_tokenizer import gguf_parts
from prolepsis.engine.text.model_tokenizer import ModelTokenizer
from prolepsis.engine.text.named_tokens import FillMarks, named_marks
from tests.engine.models.files.vocabularies import Fields, plain_fields, tokens_of, with_tokens, write_vocabulary

QWEN = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
OWN = ("<|before|>", "<|behind|>", "<|between|>", "<|project|>", "<|file|>")


def tokenizer(path: Path, fields: Fields) -> ModelTokenizer:
    return ModelTokenizer(gguf_parts(GgufFile(write_vocabulary(path / "v.gguf", fields))))


def test_marks_are_known_by_name(tmp_path: Path) -> None:
    fields = with_tokens(plain_fields(), dict.fromkeys(QWEN, CONTROL))
    names = tokens_of(fields)
    found = tokenizer(tmp_path, fields).fill_marks
    assert found is not None
    assert tuple(names[i] for i in found[:3]) == QWEN
    assert found[3:] == (None, None)


def test_marks_of_projects_are_known_too(tmp_path: Path) -> None:
    project = ("<|repo_name|>", "<|file_sep|>")
    fields = with_tokens(plain_fields(), dict.fromkeys((*QWEN, *project), CONTROL))
    names = tokens_of(fields)
    found = tokenizer(tmp_path, fields).fill_marks
    assert found is not None
    assert tuple(names[i] for i in found if i is not None) == (*QWEN, *project)


def test_what_a_file_states_goes_before_names_and_travels(tmp_path: Path) -> None:
    fields = with_tokens(plain_fields(), dict.fromkeys((*QWEN, *OWN), CONTROL))
    named = [tokens_of(fields).index(name) for name in OWN]
    ids = FillMarks(*named)
    keys = (f"tokenizer.ggml.fim_{name}_token_id" for name in ("pre", "suf", "mid", "rep", "sep"))
    found = tokenizer(tmp_path, fields | dict(zip(keys, named, strict=True)))
    assert found.fill_marks == ids
    assert ModelTokenizer.of(found.state).fill_marks == ids


def test_a_model_without_all_three_has_none(tmp_path: Path) -> None:
    assert tokenizer(tmp_path, plain_fields()).fill_marks is None
    assert named_marks({QWEN[0]: 1, QWEN[1]: 2}) is None
