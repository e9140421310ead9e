"""Given characters keep their places through what templates do with texts."""

import pytest

from prolepsis.core.given_text import GivenText, given, joined, made_of, plain

MIXED = joined(("<a>", GivenText(" <b> "), "<c>"))


def shown(text: object) -> str:
    """Mark each given character with a dot behind it."""
    assert isinstance(text, GivenText)
    return "".join(char + "." * text.holds_given(i, i + 1) for i, char in enumerate(plain(text)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (GivenText("ab"), "a.b."),
        ("a" + GivenText("b") + "c", "ab.c"),
        (GivenText("a") + GivenText("b"), "a.b."),
        (MIXED[2:5], "> .<."),
        (MIXED[-1], ">"),
        (GivenText(" a ").strip(), "a."),
        (joined(("x", GivenText(" a ")))[1:].lstrip() + "b ", "a. .b "),
        (joined(("x", GivenText("  "))).rstrip(), "x"),
        (joined((GivenText("a"), 1, GivenText("b")), ", "), "a., 1, b."),
        (MIXED[::-1], ">.c.<. .>.b.<. .>.a.<."),
    ],
)
def test_places_are_kept(text: object, expected: str) -> None:
    assert shown(text) == expected


def test_nothing_else_about_the_text_changes() -> None:
    assert MIXED == "<a> <b> <c>"
    assert {MIXED: 1}["<a> <b> <c>"] == 1
    assert [type(one) for one in GivenText("ab")] == [GivenText, GivenText]
    assert type(plain(MIXED)) is str
    assert joined(("a", 1)) == "a1"
    assert not isinstance(joined(("a", 1)), GivenText)


def test_values_are_given_with_all_their_texts() -> None:
    value = {"a": ["b", {"c": "d"}], "e": 1, "f": None}
    marked = given(value)
    assert marked == value
    assert all(isinstance(one, GivenText) for one in (*marked, marked["a"][0], *marked["a"][1].values()))
    assert type(plain(marked)["a"][0]) is str


def test_text_made_from_given_text_counts_as_given() -> None:
    known = "kept"
    source = [{"key": GivenText("x")}, known]
    assert shown(made_of("new", source)) == "n.e.w."
    assert made_of(known, source) is known
    assert type(made_of("new", [{"key": "x"}])) is str
    assert type(made_of("new", GivenText(""))) is str
