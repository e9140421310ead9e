"""Patterns that a grammar holds are told from others, which texts are checked for as ECMA-262 has them."""

import pytest

from prolepsis.engine.text.grammar.patterns import is_checkable, is_found, is_held, matches

EMAIL = r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"


@pytest.mark.parametrize(
    ("pattern", "held", "checkable"),
    [
        ("^a$", True, True), (r"\p{L}+", True, True), ("^a{2,}|b", True, True), ("a{0}b&~", True, True),
        (EMAIL, False, True), (r"^\bfoo\b$", False, True), (r"(a)\1", False, True), ("(?<=a)b", False, True),
        ("(", False, False), (r"\q", False, False), ("(a{1,1000}){1,1000}", False, True),
    ],
)  # fmt: skip
def test_what_a_grammar_holds(pattern: str, held: bool, checkable: bool) -> None:
    assert is_held(pattern) is held
    assert is_checkable([pattern]) is checkable


@pytest.mark.parametrize(
    ("pattern", "text", "found"),
    [
        (EMAIL, "a.b@c.de", True), (EMAIL, "a..b@c.de", False), (EMAIL, "a@c.de\n", False), ("^a$", "a\n", False),
        ("^[$]$", "$", True), (r"^\$$", "$", True), ("^[[]$", "[", True), (r"^[\]$]$", "$", True),
        (r"^\d\w$", "1a", True), (r"^\d$", "٣", False), (r"^\w$", "é", False), (r"^\p{L}$", "é", True),
        (r"^\s$", "\xa0", True), (r"^[\s]$", "\xa0", True), (r"^\S$", "\xa0", False), ("^[^]$", "\n", True),
        (r"^\u{1F600}$", "😀", True), (r"^(?<x>a|b)\k<x>$", "bb", True), (r"^(?<x>a|b)\k<x>$", "ab", False),
    ],
)  # fmt: skip
def test_a_text_is_found_as_by_clients(pattern: str, text: str, found: bool) -> None:
    assert matches(pattern, text) is found


def test_a_pattern_that_takes_too_long_is_given_up() -> None:
    with pytest.raises(TimeoutError):
        is_found("^(a|aa)+$", "a" * 60 + "!")
    assert not is_found("(", "a")
