"""YAML documents: how large one may be, and what is said of one that is too large."""

import time

import pytest

from prolepsis.core.yaml_document import read_yaml


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1, 2, 3, 4, 5, 6]", "it has 7 values; allowed: 6 values in all"),
        ("[&a [1, 2], *a, *a]", "its aliases stand for too much; allowed: 6 values in all"),
        ("&a [*a]", "its aliases stand for too much"),
    ],
)
def test_a_document_that_is_too_large_is_refused_with_the_reason(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_yaml(text, most=6)


@pytest.mark.parametrize("text", ["[" * 5000, "{" * 5000, "- " * 5000, "[{a: " * 5000, "? " * 5000])
def test_values_that_are_nested_deeply_are_refused_soon(text: str) -> None:
    began = time.process_time()
    with pytest.raises(ValueError, match=r"nested more than 100 deep|more brackets"):
        read_yaml(text, most=10_000)
    assert time.process_time() - began < 1.0


def test_values_may_be_nested() -> None:
    text = "[" * 99 + "]" * 99
    assert str(read_yaml(text).value) == text


def test_as_many_values_as_allowed_are_read() -> None:
    assert read_yaml("[1, 2, 3, 4, 5]", most=6).value == [1, 2, 3, 4, 5]
