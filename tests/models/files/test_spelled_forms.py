"""Forms of calls that a vocabulary cannot spell are refused, not misread."""

from dataclasses import replace
from pathlib import Path

import pytest

from prolepsis.models.files.tokenizer_files import tokenizer_parts, with_formats
from tests.models.families import NEEDS_PUBLISHED, template_of
from tests.models.files.vocabularies import OWN, write_vocabulary


@NEEDS_PUBLISHED
@pytest.mark.parametrize(("vocabulary", "is_spelled"), [("byte-level", True), ("sentencepiece", False)])
def test_a_space_of_sentencepiece_inside_a_mark_cannot_be_told_from_one(
    tmp_path: Path, vocabulary: str, is_spelled: bool
) -> None:
    parts = tokenizer_parts(write_vocabulary(tmp_path / "own.gguf", OWN[vocabulary]()))
    formats = with_formats(replace(parts, template=template_of("deepseek-ai-DeepSeek-V3.1"))).formats
    assert (formats.tools is not None) == is_spelled
    assert with_formats(replace(parts, template=template_of("hermes"))).formats.tools is not None
