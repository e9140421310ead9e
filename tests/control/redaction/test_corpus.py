"""What redaction has to reach on the corpus, also on the third of it that no rule was tuned on."""

import pytest

from prolepsis.control.redaction.values import redacted_text
from tests.control.redaction.score import Part, corpus, score

LANGUAGES = (
    *("ar", "cs", "de", "el", "en", "es", "fr", "he", "hi", "id", "it", "ja"),
    *("ko", "nl", "pl", "pt", "ru", "sv", "th", "tr", "uk", "vi", "zh"),
)


@pytest.mark.parametrize("part", ["tuned", "held_out"])
def test_at_least_95_of_100_are_found_and_9_of_10_marks_are_right(part: Part) -> None:
    result = score(part)
    assert result.recall >= 0.95, result.faults
    assert result.precision >= 0.90, result.faults


def test_the_corpus_has_700_lines_in_23_languages_and_a_third_is_held_out() -> None:
    lines = list(corpus())
    languages = {line.language for line in lines} - {"operators", "technical"}
    held_out = [line for line in lines if line.part == "held_out"]
    assert len(lines) >= 700
    assert languages == set(LANGUAGES)
    assert len(held_out) / len(lines) > 0.3
    assert {span.kind for line in held_out for span in line.spans} == set("NASICB")


def test_text_that_is_redacted_already_stays() -> None:
    for line in corpus():
        once = redacted_text(line.text)
        assert redacted_text(once) == once
