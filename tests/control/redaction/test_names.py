"""Names: what announces them, what lists say, and what only looks like a name."""

import sys
from types import FrameType

import pytest
import regex

from prolepsis.control.redaction.name_cues import _GREETING, _REQUEST, _STRONG, _WEAK, Cue, cue
from prolepsis.control.redaction.names import without_names

FOUND = {
    "my name is jordan reeves and i wait": "my name is [NAME] and i wait",
    "Dear Zyxwina, thanks": "Dear [NAME], thanks",
    "ask Zyxwin to call": "ask [NAME] to call",
    "met Herr Zyxwinger at noon": "met Herr [NAME] at noon",
    "the buyer is Karin M. Zyxwin of Ghent": "the buyer is [NAME] of Ghent",
    "we hired Wibke van der Zyxwin today": "we hired [NAME] today",
    "paid by Maria and Zyxwina yesterday": "paid by [NAME] and [NAME] yesterday",
    "Anna Zyxwin sang. Later Zyxwin left.": "[NAME] sang. Later [NAME] left.",
    "Best regards,\nZyxwin Abcdefg": "Best regards,\n[NAME]",
    '{"first_name": "Zyxwin", "plan": "gold"}': '{"first_name": "[NAME]", "plan": "gold"}',
    "login eva.schmidt failed": "login [NAME] failed",
}
KEPT = [
    "Mark the file as read and may the rose bloom in August",
    "Charlotte is a city in North Carolina, Jordan a river",
    "Schmidt Maschinenbau GmbH and Hill Inc deliver",
    "Gemma 3 and Claude run beside Llama",
    "Hello World, Dear Customer, Hi Team",
    "from api.deltas import Delta, OutputToken",
    "Anna",
    "Every Hoffmann is welcome",
]


@pytest.mark.parametrize("text", FOUND)
def test_names_are_marked(text: str) -> None:
    assert without_names(text) == FOUND[text]


@pytest.mark.parametrize("text", KEPT)
def test_other_capitalised_words_stay(text: str) -> None:
    assert without_names(text) == text


def work(text: str) -> float:
    """Return how many functions run for a character, those of C included."""
    number = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal number
        number += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        without_names(text)
    finally:
        sys.setprofile(before)
    return number / len(text)


@pytest.mark.parametrize("words", ["A B ", "Xq ", "Xq\n", "O'N ", "Ann and ", "dear Xq ", "Now Hi ", "Xq van ", "A-"])
def test_a_long_text_takes_no_more_work_for_a_character_than_a_short_one(words: str) -> None:
    without_names("Dear Ann Smith")  # reads the lists
    short, long = work(500 * words), work(2000 * words)
    assert long < 1.02 * short < 70


@pytest.mark.parametrize("text", ["A B ", "A. B. ", "The New "])
def test_cues_are_not_looked_up_for_ordinary_words(text: str) -> None:
    looked: list[int] = []

    def count(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code is cue.__code__:
            looked.append(frame.f_lineno)

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        without_names(100 * text)
    finally:
        sys.setprofile(before)
    assert looked == []


def test_words_that_announce_a_name_are_matched_backwards() -> None:
    """A search looked at 40 characters for each word, and read spaces without end for each word of a run."""
    assert all(pattern.flags & regex.REVERSE for pattern in (_STRONG, _WEAK, _GREETING, _REQUEST))
    near, far = (f"now hi Xq{spaces}," for spaces in (" ", " " * 50))
    assert (cue(near, 7, 9), cue(far, 7, 9)) == (Cue.GREETING, Cue.WEAK)
