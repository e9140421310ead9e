"""Texts are split by the rules of each name without loss, and as the models of the names split them."""

import pytest
from tokenizers import Regex, pre_tokenizers

from prolepsis.engine.models.files.text_splits import SPLITS

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
