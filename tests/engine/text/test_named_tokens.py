"""Which tokens of a vocabulary end an answer by their names."""

from pathlib import Path

import pytest

from prolepsis.engine.models.files.gguf_file import CONTROL, GgufFile
from prolepsis.engine.models.files.gguf_tokenizer import gguf_parts
from prolepsis.engine.text.model_tokenizer import ModelTokenizer
from prolepsis.engine.text.named_tokens import FillMarks, named_ends, named_marks
from tests.engine.models.files.vocabularies import Fields, plain_fields, tokens_of, with_tokens, write_vocabulary


@pytest.mark.parametrize(
    ("special", "others", "ends"),
    [
        (
            ["<|im_end|>", "x", "<|endoftext|>"],
            ["<|fim_pad|>", "<tool_call>"],
            {"<|im_end|>", "<|endoftext|>", "<|fim_pad|>"},
        ),
        (["x"], ["</s>", "[PAD]", "<eos>"], set()),
        (["</s>", "[PAD]", "<reponame>"], [], {"</s>", "[PAD]", "<reponame>"}),
        (["<|end|>", "<|user|>"], [], {"<|end|>"}),
        (["<|end|>", "<|return|>", "<|call|>"], [], {"<|return|>", "<|call|>"}),
        (["<|end|>", "<|flush|>", "<|calls|>"], [], {"<|flush|>", "<|calls|>"}),
        (["<turn|>"], ["<|tool_response>"], {"<turn|>", "<|tool_response>"}),
    ],
    ids=["qwen", "tags", "special tags", "phi", "gpt-oss", "solar", "gemma 4"],
)
def test_ends_are_known_by_name(special: list[str], others: list[str], ends: set[str]) -> None:
    names = [*special, *others]
    ids = {name: i for i, name in enumerate(names)}
    found = named_ends({name: ids[name] for name in special}, {name: ids[name] for name in others})
    assert {names[i] for i in found} == ends
    assert list(found) == sorted(found)


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
