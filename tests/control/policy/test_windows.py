"""Time windows by the clock of their zone."""

from datetime import UTC, datetime, timedelta

import pytest
from pydantic import ValidationError

from prolepsis.control.policy.conditions import TimeWindow


def window(**given: object) -> TimeWindow:
    return TimeWindow.model_validate(given)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("given", "inside", "outside"),
    [
        ({"hours": "08:00-18:00"}, ["2026-11-21T08:00", "2026-11-21T17:59"], ["2026-11-21T07:59", "2026-11-21T18:00"]),
        # 2026-11-20 is a Friday
        ({"days": "mon-fri"}, ["2026-11-20T23:59", "2026-11-23T00:00"], ["2026-11-21T00:00", "2026-11-22T12:00"]),
        ({"days": ["fri-mon"]}, ["2026-11-20T00:00", "2026-11-22T00:00", "2026-11-23T10:00"], ["2026-11-24T00:00"]),
        (
            {"days": "fri", "hours": "22:00-06:00"},
            ["2026-11-20T22:00", "2026-11-21T05:59"],
            ["2026-11-20T05:00", "2026-11-21T06:00", "2026-11-21T23:00"],
        ),
        ({"days": "sun", "hours": "22:00-06:00"}, ["2026-11-23T01:00"], ["2026-11-22T01:00"]),
        # Berlin is an hour ahead in November, two in July
        (
            {"hours": "08:00-09:00", "time_zone": "Europe/Berlin"},
            ["2026-11-21T07:30", "2026-07-21T06:30"],
            ["2026-11-21T08:30", "2026-07-21T07:30"],
        ),
        ({"days": "sat", "time_zone": "Pacific/Auckland"}, ["2026-11-20T12:00"], ["2026-11-21T12:00"]),
    ],
)
def test_times_inside_a_window(given: dict[str, object], inside: list[str], outside: list[str]) -> None:
    one = window(**given)
    assert [one.holds(at(text)) for text in inside] == [True] * len(inside)
    assert [one.holds(at(text)) for text in outside] == [False] * len(outside)


@pytest.mark.parametrize(
    "given",
    [
        {"hours": "8-18"},
        {"hours": "08:00-08:00"},
        {"hours": "24:00-08:00"},
        {"hours": "08:00-24:30"},
        {"days": "friday"},
        {"days": []},
        {"days": 5},
        {"time_zone": "Europe/Atlantis"},
        {"time_zone": "../etc/passwd"},
    ],
)
def test_what_is_refused(given: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        window(**given)


def test_what_holds_for_all_witnesses_holds_over_a_week() -> None:
    ones = [
        window(),
        window(days="mon-fri"),
        window(days="mon", hours="08:00-18:00"),
        window(days="mon-tue", hours="09:00-17:00"),
        window(hours="22:00-06:00"),
        window(days="mon", hours="23:00-05:00"),
        window(hours="08:00-18:00", time_zone="Europe/Berlin"),
    ]
    week = [at("2026-11-16T00:00") + timedelta(minutes=30 * i) for i in range(7 * 48)]
    num_covered = 0
    for wide in ones:
        for narrow in ones:
            if all(map(wide.holds, narrow.witnesses())):
                num_covered += 1
                assert all(wide.holds(time) for time in week if narrow.holds(time)), f"{wide} and {narrow}"
    assert num_covered >= len(ones) * 2 + 1  # each itself, the first all others, the fifth the sixth
