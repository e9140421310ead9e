"""Tokenizers from folders and GGUF files read and write text as transformers does."""

import json
from pathlib import Path

import pytest
from tokenizers import AddedToken, decoders, pre_tokenizers
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from prolepsis.core.config import EngineConfig
from prolepsis.core.errors import InvalidParameter, ModelLoadError
from prolepsis.core.given_text import GivenText
from prolepsis.engine.models.files.tokenizer_files import load_tokenizer, tokenizer_parts
from prolepsis.engine.text.model_tokenizer import ModelTokenizer, TokenizerParts
from tests.engine.models.files.gguf_files import TEMPLATE, write_gguf
from tests.engine.models.files.vocabularies import plain_fields, tokens_of, write_vocabulary
from tests.engine.models.tiny import save_tiny

TEXTS = ["hello world", "  two  spaces\n\nlines", "year 2026, 3.14", "äöü 你好 🙂", "hello</s>hello", ""]
CHAT = [{"role": "user", "content": "hello 12"}, {"role": "assistant", "content": "hell"}]


def byte_level(template: str | None = TEMPLATE) -> PreTrainedTokenizerFast:
    """transformers' own tokenizer over the vocabulary that GGUF files of these tests hold."""
    fields = plain_fields()
    merges = fields["tokenizer.ggml.merges"]
    assert isinstance(merges, list)
    pairs = [(a, b) for a, _, b in (str(merge).partition(" ") for merge in merges)]
    backend = Backend(BPE(vocab={token: i for i, token in enumerate(tokens_of(fields))}, merges=pairs))
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), plain])
    backend.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>")
    made.chat_template = template
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer")
    byte_level().save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf")
    write_gguf(path / "model.gguf", save_tiny(path / "model", "llama", {}), "llama")
    return path / "model.gguf"


@pytest.fixture(scope="module", params=["folder", "gguf_file"])
def tokenizer(request: pytest.FixtureRequest) -> ModelTokenizer:
    path = request.getfixturevalue(request.param)
    assert isinstance(path, Path)
    return load_tokenizer(path)


@pytest.mark.parametrize("text", TEXTS)
def test_it_agrees_with_transformers(tokenizer: ModelTokenizer, folder: Path, text: str) -> None:
    theirs = AutoTokenizer.from_pretrained(str(folder))
    ids = tokenizer.encode(text)
    assert ids == theirs(text)["input_ids"]
    for skip in (True, False):
        assert tokenizer.decode(ids, skip_special_tokens=skip) == theirs.decode(ids, skip_special_tokens=skip)
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_the_chat_template_agrees_with_transformers(tokenizer: ModelTokenizer, folder: Path) -> None:
    theirs = AutoTokenizer.from_pretrained(str(folder))
    assert tokenizer.apply_chat_template(CHAT) == theirs.apply_chat_template(CHAT, return_dict=False)


def test_its_facts(tokenizer: ModelTokenizer) -> None:
    assert tokenizer.eos_token_ids == (1,)
    assert tokenizer.special_token_ids == {0, 1}
    assert tokenizer.vocab["hello"] == tokenizer.vocab_size - 1


def test_the_fingerprint_tells_tokenizers_apart(folder: Path, tmp_path: Path) -> None:
    ours = load_tokenizer(folder)
    assert ours.fingerprint == load_tokenizer(folder).fingerprint
    byte_level("{{ messages[0]['content'] }}").save_pretrained(tmp_path)
    other = load_tokenizer(tmp_path)
    assert ours.fingerprint != other.fingerprint


@pytest.mark.parametrize("special", [True, False])
def test_marks_that_answers_are_read_by_are_text_however_the_model_calls_them(tmp_path: Path, special: bool) -> None:
    theirs = byte_level()
    theirs.add_tokens([AddedToken(text, special=special) for text in ("<think>", "</think>")], special_tokens=special)
    theirs.add_tokens(["<|other|>"], special_tokens=True)
    theirs.save_pretrained(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    ids = tokenizer.encode("<think>hello</think><|other|>")
    assert ids == [tokenizer.vocab[text] for text in ("<think>", "hello", "</think>", "<|other|>")]
    assert tokenizer.decode(ids) == "<think>hello</think>"
    assert tokenizer.special_token_ids == {0, 1, tokenizer.vocab["<|other|>"]}
    assert len(tokenizer.encode(GivenText("<think>"))) > 1


def test_forms_that_a_setting_names_leave_the_fingerprint_as_it_is(tmp_path: Path) -> None:
    theirs = byte_level()
    theirs.add_tokens(["<think>", "</think>", "[TOOL_CALLS]"], special_tokens=True)
    theirs.save_pretrained(tmp_path)
    config = EngineConfig(tool_format="mistral", reasoning_format="mistral")
    ours, named = load_tokenizer(tmp_path), load_tokenizer(tmp_path, config)
    assert ours.special_token_ids != named.special_token_ids
    assert ours.fingerprint == named.fingerprint == ModelTokenizer(tokenizer_parts(tmp_path)).fingerprint


NAMED = {
    "default": "{{ messages[0].content }}",
    "tool_use": "{{ tools | tojson }}\n",
    "rag": "{{ documents | tojson }}",
}
TOOLS = [{"type": "function", "function": {"name": "f", "description": "d"}}]


@pytest.mark.parametrize("as_files", [True, False])
def test_several_templates_of_a_folder_are_taken_as_by_transformers(tmp_path: Path, as_files: bool) -> None:
    theirs = byte_level()
    theirs.chat_template = dict(NAMED)
    theirs.save_pretrained(tmp_path, save_jinja_files=as_files)
    assert (tmp_path / "additional_chat_templates" / "tool_use.jinja").is_file() == as_files
    tokenizer = load_tokenizer(tmp_path)
    for tools in (None, TOOLS):
        expected = theirs.apply_chat_template(CHAT, tools=tools, return_dict=False)
        assert tokenizer.apply_chat_template(CHAT, tools=tools) == expected
    cited = tokenizer.apply_chat_template(CHAT, variables={"documents": [{"title": "t"}]})
    assert tokenizer.decode(cited) == '[{"title": "t"}]'


def test_several_templates_of_a_file_are_taken_by_their_keys(tmp_path: Path) -> None:
    keys = {"default": "", "tool_use": ".tool_use", "rag": ".rag"}
    named = {f"tokenizer.chat_template{keys[name]}": text for name, text in NAMED.items()}
    tokenizer = load_tokenizer(write_vocabulary(tmp_path / "m.gguf", {**plain_fields(), **named}))
    assert tokenizer.decode(tokenizer.apply_chat_template(CHAT)) == CHAT[0]["content"]
    assert tokenizer.decode(tokenizer.apply_chat_template(CHAT, tools=TOOLS)) == json.dumps(TOOLS)


def test_a_system_message_reaches_a_model_whose_template_has_no_such_role(tmp_path: Path) -> None:
    byte_level("{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}").save_pretrained(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    ids = tokenizer.apply_chat_template([{"role": "system", "content": "Be brief."}, *CHAT])
    assert tokenizer.decode(ids) == "Be brief.\n\nhello 12hell"


def test_no_template_is_the_callers_fault(tmp_path: Path) -> None:
    byte_level(None).save_pretrained(tmp_path)
    with pytest.raises(InvalidParameter, match="no chat template"):
        load_tokenizer(tmp_path).apply_chat_template(CHAT)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"])
def test_a_broken_file_is_named(tmp_path: Path, name: str) -> None:
    byte_level().save_pretrained(tmp_path)
    (tmp_path / name).write_bytes(b"{broken \xf9")
    with pytest.raises(ModelLoadError, match=name):
        load_tokenizer(tmp_path)


def test_written_as_json_it_neither_pads_nor_cuts() -> None:
    backend = byte_level().backend_tokenizer
    backend.enable_truncation(2)
    backend.enable_padding(length=9)
    made = ModelTokenizer(TokenizerParts(backend, None, {}, ()))
    again = Backend.from_str(made.to_json())
    backend.no_truncation()
    backend.no_padding()
    assert again.encode("hello world 12").ids == backend.encode("hello world 12").ids


@pytest.mark.parametrize("text", TEXTS)
def test_the_bytes_of_its_tokens_make_up_the_text(tokenizer: ModelTokenizer, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert b"".join(map(tokenizer.token_bytes, ids)).decode() == tokenizer.decode(ids, skip_special_tokens=False)
    assert tokenizer.token_bytes(tokenizer.vocab_size) == b"", "logits may be wider than the vocabulary"
