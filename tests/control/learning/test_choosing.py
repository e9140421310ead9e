"""Which requests become examples, and how much time that may take."""

import pytest

from prolepsis.control.learning.choosing import BURST_S, HALF_LIFE, SHARE_OF_TIME, Chooser


def taught(*lengths: float, traffic_class: str = "chat") -> Chooser:
    """Return a chooser that has seen requests of a class with so many tokens a pass."""
    chooser = Chooser()
    for length in lengths:
        chooser.choose(traffic_class, length, by_chance=False)
    return chooser


@pytest.mark.parametrize(
    ("traffic_class", "length", "by_chance", "kept"),
    [
        ("chat", 1.9, False, True),
        ("chat", 2.0, False, False),
        ("chat", 2.1, True, True),
        ("chat", 2.1, False, False),
        ("chat", None, False, False),
        ("chat", None, True, True),
        ("another", 1.0, False, False),
        ("another", 1.0, True, True),
    ],
)
def test_what_is_below_the_norm_of_its_class_is_kept_and_a_share_of_the_rest(
    traffic_class: str, length: float | None, *, by_chance: bool, kept: bool
) -> None:
    assert taught(*[2.0] * 10).choose(traffic_class, length, by_chance=by_chance) is kept


def test_a_norm_forgets() -> None:
    chooser = taught(*[4.0] * 2000)
    for _ in range(int(HALF_LIFE)):
        chooser.choose("chat", 2.0, by_chance=False)
    assert not chooser.choose("chat", 3.05, by_chance=False), "half of the norm is gone"
    assert chooser.choose("chat", 2.95, by_chance=False)


def test_plain_requests_do_not_count_for_the_norm() -> None:
    chooser = taught(2.0)
    for _ in range(100):
        chooser.choose("chat", None, by_chance=False)
    assert chooser.choose("chat", 1.99, by_chance=False)


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
