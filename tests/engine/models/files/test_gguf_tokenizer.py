"""Tokenizers of GGUF files: the kinds and rules that are read, what files may leave out, and what is refused."""

from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers import Regex, pre_tokenizers

from prolepsis.core.errors import ModelLoadError
from prolepsis.engine.models.files.gguf_container import Value
from prolepsis.engine.models.files.gguf_file import USER_DEFINED, GgufFile
from prolepsis.engine.models.files.gguf_tokenizer import gguf_parts
from prolepsis.engine.models.files.text_splits import SPLITS
from prolepsis.engine.models.files.tokenizer_files import load_tokenizer, tokenizer_parts, with_formats
from prolepsis.engine.text.model_tokenizer import ModelTokenizer
from tests.engine.models.families import NEEDS_PUBLISHED, template_of, write_named
from tests.engine.models.files.vocabularies import OWN, plain_fields, tokens_of, write_vocabulary

TOKENS = tokens_of(plain_fields())
TYPES = plain_fields()["tokenizer.ggml.token_type"]
assert isinstance(TYPES, list)

Changes = dict[str, Value | None]


def write(path: Path, changes: Changes) -> Path:
    """Write a vocabulary of bytes in which these entries differ; None leaves one out."""
    fields = plain_fields()
    for name, value in changes.items():
        key = f"tokenizer.ggml.{name}"
        fields.pop(key, None)
        if value is not None:
            fields[key] = value
    return write_vocabulary(path, fields)


@pytest.mark.parametrize(
    ("changes", "text", "ids"),
    [
        ({}, "hello", ["hello"]),
        ({"add_bos_token": True}, "hello", ["<s>", "hello"]),
        ({"add_eos_token": True}, "hello", ["hello", "</s>"]),
        ({"add_bos_token": True, "add_eos_token": True}, "", ["<s>", "</s>"]),
        ({"pre": "llama-bpe"}, "hello", ["<s>", "hello"]),
        ({"pre": "llama-bpe", "add_bos_token": False}, "hello", ["hello"]),
        ({"pre": "llama-bpe", "bos_token_id": None}, "hello", ["hello"]),
        ({"bos_token_id": 2**32 - 1, "add_bos_token": True}, "hello", ["hello"]),
        ({"padding_token_id": 999}, "hello", ["hello"]),
        ({"token_type": None}, "hello", ["hello"]),
    ],
)
def test_tokens_around_a_text_are_those_that_the_file_says(
    tmp_path: Path, changes: Changes, text: str, ids: list[str]
) -> None:
    tokenizer = load_tokenizer(write(tmp_path / "m.gguf", changes))
    assert tokenizer.encode(text) == [TOKENS.index(token) for token in ids]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"pre": "nobody-knows"}, "split by rule 'nobody-knows'"),
        ({"pre": None}, "split by rule 'default'"),
        *(({"model": kind}, f"of kind '{kind}'; read are: llama") for kind in ("bert", "t5", "rwkv", "plamo2", "x")),
        ({"merges": None}, "no merges"),
        ({"merges": ["h e", "hello hello"]}, "'hello hello' joins or makes what is no token"),
        ({"tokens": [*TOKENS[:-1], "<s>"]}, "the token '<s>' twice"),
        ({"tokens": None}, "no vocabulary"),
        ({"token_type": TYPES[:-1]}, "token_type has 262 entries for 263 tokens"),
        ({"eos_token_id": 263}, "eos_token_id is 263; it has 263 tokens"),
        ({"eot_token_id": 300}, "eot_token_id is 300"),
        ({"bos_token_id": 300}, "bos_token_id is 300"),
        ({"tokens": list(range(263))}, "tokens is not a list of strings"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(tmp_path: Path, changes: Changes, named: str) -> None:
    with pytest.raises(ModelLoadError, match=named):
        load_tokenizer(write(tmp_path / "m.gguf", changes))


def test_an_empty_token_has_a_name_of_its_own(tmp_path: Path) -> None:
    file = write(tmp_path / "m.gguf", {"tokens": ["", *TOKENS[1:]], "bos_token_id": 1})
    assert load_tokenizer(file).vocab["[EMPTY_0]"] == 0


def test_gemma_4_spells_spaces_and_bytes_as_sentencepiece_does(tmp_path: Path) -> None:
    spelled = ["<bos>", "<eos>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", "a", "b", "\n", "ab"]
    kinds = [3, 3, 3, *([6] * 256), *([1] * 5)]
    own: Changes = {"model": "gemma4", "pre": None, "tokens": [*spelled], "token_type": [*kinds], "merges": ["a b"]}
    file = write(tmp_path / "m.gguf", {**own, "unknown_token_id": 2, "add_bos_token": False})
    tokenizer = ModelTokenizer(gguf_parts(GgufFile(file)))
    ids = tokenizer.encode("ab a\nb\u00e9")
    expected = ["<bos>", "ab", "\u2581", "a", "\n", "b", "<0xC3>", "<0xA9>"]
    assert ids == [spelled.index(token) for token in expected]
    assert tokenizer.decode(ids) == "ab a\nb\u00e9"


TEXT = "Hello  World's 12345 don't\r\n\n  foo_bar(x)=y; \u00e9 \u4f60\u597d\u304b \uc548\ub155 \uff14\uff15\t<|a|>  \n"


def parts(name: str, text: str) -> list[str]:
    rules = [pre_tokenizers.Split(Regex(rule), behavior="isolated") for rule in SPLITS[name].rules]
    return [part for part, _ in pre_tokenizers.Sequence([*rules]).pre_tokenize_str(text)]


@pytest.mark.parametrize("name", SPLITS)
def test_nothing_is_lost(name: str) -> None:
    assert "".join(parts(name, TEXT)) == TEXT


@pytest.mark.parametrize(
    ("name", "digits"),
    [
        ("gpt-2", [" 12345"]),
        ("smollm", [" ", "1", "2", "3", "4", "5"]),
        ("llama-bpe", [" ", "123", "45"]),
        ("tiny_aya", [" ", "12", "345"]),
        ("superbpe", ["it's ", "12", "345"]),
        ("falcon", [" ", "123", "45"]),
    ],
)
def test_digits_are_split_as_the_models_do(name: str, digits: list[str]) -> None:
    assert parts(name, "it's 12345")[-len(digits) :] == digits


@pytest.mark.parametrize("name", ["gpt-4o", "tekken", "kimi-k2"])
def test_words_with_capitals_inside_are_split(name: str) -> None:
    assert parts(name, "camelCase") == ["camel", "Case"]
    assert parts("llama-bpe", "camelCase") == ["camelCase"]


@NEEDS_PUBLISHED
@pytest.mark.parametrize(("vocabulary", "is_spelled"), [("byte-level", True), ("sentencepiece", False)])
def test_a_space_of_sentencepiece_inside_a_mark_cannot_be_told_from_one(
    tmp_path: Path, vocabulary: str, is_spelled: bool
) -> None:
    parts = tokenizer_parts(write_vocabulary(tmp_path / "own.gguf", OWN[vocabulary]()))
    formats = with_formats(replace(parts, template=template_of("deepseek-ai-DeepSeek-V3.1"))).formats
    assert (formats.tools is not None) == is_spelled
    assert with_formats(replace(parts, template=template_of("hermes"))).formats.tools is not None


@NEEDS_PUBLISHED
def test_a_space_behind_an_added_token_spoils_no_form(tmp_path: Path) -> None:
    added = {"<tool_call>": USER_DEFINED, "</tool_call>": USER_DEFINED}
    path = write_named(tmp_path / "tiny.gguf", "llama-spm", "hermes", added)
    formats = load_tokenizer(path).formats
    assert formats.tools is not None
    assert formats.tools.name == "hermes"
