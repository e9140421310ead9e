"""Time windows: days of the week and hours of a time zone's clock."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo
from typing import Annotated, Literal, Self, get_args
from zoneinfo import ZoneInfo

from pydantic import BeforeValidator, Field, RootModel, field_validator, model_validator

from prolepsis.control.shape import STRICT, Part, one_or_more

Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
DAYS: tuple[Day, ...] = get_args(Day)
_HOURS = re.compile(r"([01][0-9]|2[0-4]):([0-5][0-9])-([01][0-9]|2[0-4]):([0-5][0-9])")
_DAY_MINUTES = 24 * 60


def _days(value: object) -> object:
    """Read day names and ranges of them, such as mon-fri, as the days they stand for."""
    given = one_or_more(value)
    if not isinstance(given, tuple):
        return given
    named = [day for part in given for day in _days_of(part)]
    return tuple(sorted(set(named), key=DAYS.index))


def _days_of(part: object) -> Iterator[Day]:
    first, dash, last = str(part).partition("-")
    if first not in DAYS or (dash and last not in DAYS):
        raise ValueError(f"{str(part)[:32]!r} is no day; allowed: {', '.join(DAYS)}, or a range such as mon-fri")
    start = DAYS.index(first)
    length = (DAYS.index(last) - start) % len(DAYS) if dash else 0
    for i in range(length + 1):
        yield DAYS[(start + i) % len(DAYS)]


class TimeWindow(Part):
    """Hours on some days; hours that pass midnight belong to the day they begin on."""

    days: Annotated[tuple[Day, ...], BeforeValidator(_days), Field(min_length=1)] = DAYS
    hours: str = "00:00-24:00"
    """HH:MM-HH:MM, the end not included."""
    time_zone: str = "UTC"
    """A name of the IANA database, such as Europe/Berlin."""

    @field_validator("hours")
    @classmethod
    def _readable(cls, hours: str) -> str:
        start, end = _minutes(hours)
        if start == end or start >= _DAY_MINUTES or end > _DAY_MINUTES:
            raise ValueError("allowed: two different times of a day, HH:MM-HH:MM, up to 24:00")
        return hours

    @field_validator("time_zone")
    @classmethod
    def _known(cls, name: str) -> str:
        _zone(name)
        return name

    def holds(self, fact: object) -> bool:
        if not isinstance(fact, datetime):
            return False
        local = fact.astimezone(_zone(self.time_zone))
        minute, day = 60 * local.hour + local.minute, local.weekday()
        start, end = self._span
        begun_today = DAYS[day] in self.days and start <= minute < end
        return begun_today or (DAYS[day - 1] in self.days and minute + _DAY_MINUTES < end)

    def covers(self, other: Self) -> bool:
        (start, end), (other_start, other_end) = self._span, other._span
        if set(self.days) == set(DAYS) and end - start >= _DAY_MINUTES:
            return True
        same_clock = self.time_zone == other.time_zone
        return same_clock and set(self.days) >= set(other.days) and start <= other_start and other_end <= end

    @property
    def _span(self) -> tuple[int, int]:
        """Minutes of the day it begins on; the end lies beyond it where it passes midnight."""
        start, end = _minutes(self.hours)
        return start, end if end > start else end + _DAY_MINUTES

    def __str__(self) -> str:
        return f"{','.join(self.days)} {self.hours} {self.time_zone}"


class Windows(RootModel[Annotated[tuple[TimeWindow, ...], Field(min_length=1)]]):
    """Any of these windows."""

    model_config = STRICT

    @model_validator(mode="before")
    @classmethod
    def _listed(cls, value: object) -> object:
        return (value,) if isinstance(value, dict) else one_or_more(value)

    def holds(self, fact: object) -> bool:
        return any(window.holds(fact) for window in self.root)

    def covers(self, other: Self) -> bool:
        return all(any(mine.covers(theirs) for mine in self.root) for theirs in other.root)

    def __str__(self) -> str:
        return " or ".join(map(str, self.root))


def _minutes(hours: str) -> tuple[int, int]:
    match = _HOURS.fullmatch(hours)
    if match is None:
        raise ValueError("allowed: HH:MM-HH:MM, such as 08:00-18:30 or 22:00-06:00")
    start_hour, start_minute, end_hour, end_minute = map(int, match.groups())
    return 60 * start_hour + start_minute, 60 * end_hour + end_minute


def _zone(name: str) -> tzinfo:
    if name == "UTC":  # known without a database of time zones
        return UTC
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError):
        raise ValueError(
            "no time zone of that name here; allowed: UTC, or an IANA name such as Europe/Berlin"
        ) from None
