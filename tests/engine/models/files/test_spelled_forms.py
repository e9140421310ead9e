"""Forms of calls that a vocabulary cannot spell are refused, not misread."""

from dataclasses import replace
from pathlib import Path

import pytest

from prolepsis.engine.models.files.gguf_file import USER_DEFINED
from prolepsis.engine.models.files.tokenizer_files import load_tokenizer, tokenizer_parts, with_formats
from tests.engine.models.families import NEEDS_PUBLISHED, template_of, write_named
from tests.engine.models.files.vocabularies import OWN, write_vocabulary


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
