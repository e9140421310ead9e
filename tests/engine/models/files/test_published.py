"""Vocabularies and chat templates of published models: llama.cpp's own ids, and the texts that transformers renders."""

from pathlib import Path
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from prolepsis.core.errors import InvalidParameter
from prolepsis.core.given_text import given
from prolepsis.engine.models.files.tokenizer_files import load_tokenizer
from prolepsis.engine.text.chat_template import ChatTemplate
from prolepsis.engine.text.model_tokenizer import ModelTokenizer
from tests.engine.models.families import FOLDER, NEEDS_PUBLISHED, published
from tests.engine.models.files.byte_level import byte_level

pytestmark = NEEDS_PUBLISHED

VOCABULARIES = (*("deepseek-llm", "falcon", "gemma-4", "gpt-2", "llama-bpe", "llama-spm", "phi-3", "qwen2", "qwen35"),)
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
TEMPLATES = sorted(Path(FOLDER).glob("templates/*.jinja")) if FOLDER else []

PARAMETERS = {
    "type": "object",
    "properties": {"town": {"type": "string", "description": "é <b>"}, "days": {"type": "integer"}},
    "required": ["town"],
}
TOOLS = [{"type": "function", "function": {"name": "f", "description": "Weather", "parameters": PARAMETERS}}]
CALL = {"name": "f", "arguments": {"town": "Žilina", "days": 2}}
USER = {"role": "user", "content": "Hi <b>"}
SYSTEM = {"role": "system", "content": "Be brief."}
ANSWER = {"role": "assistant", "content": "Hello", "reasoning_content": "They greet."}
CALLS = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": "abcdefghi", "type": "function", "function": CALL}],
}
RESULT = {"role": "tool", "tool_call_id": "abcdefghi", "name": "f", "content": "sun"}
CONVERSATIONS: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]] | None]] = {
    "plain": ([USER], None),
    "system": ([SYSTEM, USER, ANSWER, USER], None),
    "tools": ([USER], TOOLS),
    "calls": ([USER, CALLS, RESULT], TOOLS),
}


def read(file: Path) -> str:
    return file.read_text(encoding="utf-8")


@pytest.fixture(scope="module", params=VOCABULARIES)
def named(request: pytest.FixtureRequest) -> tuple[Path, ModelTokenizer]:
    path = published(f"vocab/ggml-vocab-{request.param}.gguf")
    return path, load_tokenizer(path)


def test_texts_have_the_ids_that_llama_cpp_expects(named: tuple[Path, ModelTokenizer]) -> None:
    path, tokenizer = named
    texts = read(Path(f"{path}.inp")).split("\n__ggml_vocab_test__\n")
    lines = read(Path(f"{path}.out")).splitlines()
    assert len(lines) >= 40
    for text, line in zip(texts, lines, strict=False):
        ids = [int(one) for one in line.split()]
        assert tokenizer.encode(text, add_special_tokens=False) == ids, repr(text)
        assert tokenizer.decode(ids) == text


def by_transformers(source: str, messages: object, tools: object) -> str | Exception:
    try:
        texts, _ = render_jinja_template(
            conversations=[messages], tools=tools, chat_template=source, add_generation_prompt=True, **SPECIAL
        )
    except Exception as error:  # a template may fail in any way
        return error
    return str(texts[0])


@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("file", TEMPLATES, ids=lambda file: file.stem)
def test_a_template_renders_as_in_transformers(file: Path, conversation: str) -> None:
    """What is refused there is refused here too, but for generators as JSON, which are lists here."""
    messages, tools = CONVERSATIONS[conversation]
    expected = by_transformers(read(file), messages, tools)
    template = ChatTemplate(read(file), SPECIAL)
    if "generator is not JSON" in str(expected):
        assert template.render(given(messages), tools=given(tools))
    elif isinstance(expected, Exception):
        with pytest.raises(InvalidParameter):
            template.render(given(messages), tools=given(tools))
    else:
        assert template.render(given(messages), tools=given(tools)) == expected


@pytest.mark.parametrize("file", TEMPLATES, ids=lambda file: file.stem)
def test_a_last_message_that_is_continued_ends_the_prompt(file: Path) -> None:
    """Templates that need tools refuse the conversation, continued or not."""
    begun = "Sure, here \n"
    tokenizer, messages = byte_level(read(file)), [USER, {"role": "assistant", "content": given(begun)}]
    try:
        whole = tokenizer.apply_chat_template(messages, add_generation_prompt=False)
    except InvalidParameter:
        with pytest.raises(InvalidParameter):
            tokenizer.apply_chat_template(messages, continue_final_message=True)
        return
    prompt = tokenizer.apply_chat_template(messages, continue_final_message=True)
    text = tokenizer.decode(prompt, skip_special_tokens=False)
    assert text.endswith(begun)
    assert tokenizer.decode(whole, skip_special_tokens=False).startswith(text.rstrip())
