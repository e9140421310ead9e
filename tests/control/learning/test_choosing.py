"""Which requests become examples, and how much time that may take."""

import random

import pytest

from prolepsis.control.learning.choosing import BURST_S, HALF_LIFE, SHARE_OF_REST, SHARE_OF_TIME, Chooser

LATE = 0.999  # a draw that is in no share


def taught(*lengths: float, traffic_class: str = "chat") -> Chooser:
    """Return a chooser that has seen requests of a class with so many tokens a pass."""
    chooser = Chooser()
    for length in lengths:
        chooser.choose(traffic_class, length, LATE)
    return chooser


@pytest.mark.parametrize(
    ("traffic_class", "length", "drawn", "kept"),
    [
        ("chat", 1.9, LATE, True),
        ("chat", 2.0, LATE, False),
        ("chat", 2.1, SHARE_OF_REST - 0.001, True),
        ("chat", 2.1, SHARE_OF_REST, False),
        ("chat", None, LATE, False),
        ("chat", None, 0.0, True),
        ("another", 1.0, LATE, False),
        ("another", 1.0, 0.0, True),
    ],
)
def test_what_is_below_the_norm_of_its_class_is_kept_and_a_share_of_the_rest(
    traffic_class: str, length: float | None, drawn: float, kept: bool
) -> None:
    assert taught(*[2.0] * 10).choose(traffic_class, length, drawn) is kept


def test_a_quarter_of_what_drafts_fit_is_kept_and_all_of_what_they_do_not() -> None:
    chooser, draws = taught(*[2.0] * 50), random.Random(1)
    for length, share in ((2.5, SHARE_OF_REST), (1.5, 1.0)):
        kept = 0
        for _ in range(4000):
            kept += chooser.choose("chat", length, draws.random())
            chooser.choose("chat", 4.0 - length, LATE)  # the norm stays at 2
        assert abs(kept / 4000 - share) < 0.03


def test_a_norm_forgets() -> None:
    chooser = taught(*[4.0] * 2000)
    for _ in range(int(HALF_LIFE)):
        chooser.choose("chat", 2.0, LATE)
    assert not chooser.choose("chat", 3.05, LATE), "half of the norm is gone"
    assert chooser.choose("chat", 2.95, LATE)


def test_plain_requests_do_not_count_for_the_norm() -> None:
    chooser = taught(2.0)
    for _ in range(100):
        chooser.choose("chat", None, LATE)
    assert chooser.choose("chat", 1.99, LATE)


def test_examples_take_their_share_of_the_time_at_most() -> None:
    chooser, elapsed, spent = Chooser(), 0.0, 0.0
    for _ in range(20_000):
        elapsed += 0.01
        if chooser.has_time(elapsed):
            chooser.spent_s += 0.03
            spent += 0.03
    assert SHARE_OF_TIME * elapsed * 0.95 < spent <= SHARE_OF_TIME * elapsed + 0.03


def test_a_quiet_day_saves_up_no_more_than_a_burst() -> None:
    chooser, spent = Chooser(), 0.0
    while chooser.has_time(86_400.0) and spent < 100.0:
        chooser.spent_s += 0.03
        spent += 0.03
    assert BURST_S <= spent < BURST_S + 0.04
