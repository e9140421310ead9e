"""Conditions of rules on single facts of a request: names, ranges, headers, languages, flags and time windows."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime, time, timedelta, tzinfo
from functools import cached_property
from itertools import chain, product
from math import inf
from typing import Annotated, Generic, Literal, Protocol, Self, TypeAlias, TypeVar, get_args
from zoneinfo import ZoneInfo

from pydantic import AwareDatetime, BeforeValidator, Field, RootModel, field_validator, model_validator

from prolepsis.core.validation import STRICT, Name, Number, Part, one_or_more, spelt

Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
DAYS: tuple[Day, ...] = get_args(Day)
_HOURS = re.compile(r"([01][0-9]|2[0-4]):([0-5][0-9])-([01][0-9]|2[0-4]):([0-5][0-9])")
_DAY_MINUTES = 24 * 60
_MONDAYS = (datetime(2024, 1, 1), datetime(2024, 7, 1))  # of any time zone
_LATE = datetime(2424, 1, 1)  # a Monday after the end of any window that has one
_ANY = "\uffff"  # stands for any text in a witness: no pattern has it


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
        raise ValueError(f"{str(part)[:32]!r} is not a day; allowed: {', '.join(DAYS)}, or a range such as mon-fri")
    start = DAYS.index(first)
    length = (DAYS.index(last) - start) % len(DAYS) if dash else 0
    for i in range(length + 1):
        yield DAYS[(start + i) % len(DAYS)]


class TimeWindow(Part):
    """Hours on some days; hours that pass midnight belong to the day they begin on."""

    days: Annotated[tuple[Day, ...], BeforeValidator(_days), Field(min_length=1)] = DAYS
    hours: str = "00:00-24:00"  # HH:MM-HH:MM, the end not included
    time_zone: str = "UTC"  # a name of the IANA database, such as Europe/Berlin
    until: Annotated[AwareDatetime, Field(strict=False)] | None = None  # it holds before that alone

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
        if not isinstance(fact, datetime) or (self.until is not None and fact >= self.until):
            return False
        local = fact.astimezone(_zone(self.time_zone))
        minute, day = 60 * local.hour + local.minute, local.weekday()
        start, end = self._span
        begun_today = DAYS[day] in self.days and start <= minute < end
        return begun_today or (DAYS[day - 1] in self.days and minute + _DAY_MINUTES < end)

    def witnesses(self) -> Iterator[datetime]:
        """Yield its quarters of an hour and last minutes, in a week of winter, one of summer and its last two."""
        (start, end), zone, last = self._span, _zone(self.time_zone), self.until
        mondays = [*_MONDAYS, _LATE]
        if last is not None:
            this = datetime.combine(last.astimezone(zone) - timedelta(days=last.astimezone(zone).weekday()), time())
            mondays[-1:] = [this - timedelta(days=7), this]
        for monday, day in product(mondays, self.days):
            midnight = (monday + timedelta(days=DAYS.index(day))).replace(tzinfo=zone)
            found = (midnight + timedelta(minutes=minute) for minute in (*range(start, end, 15), end - 1))
            yield from (at for at in found if last is None or at < last)
        if last is not None and self.holds(moment := last - timedelta(microseconds=1)):
            yield moment

    @property
    def _span(self) -> tuple[int, int]:
        """Minutes of the day it begins on; the end lies beyond it where it passes midnight."""
        start, end = _minutes(self.hours)
        return start, end if end > start else end + _DAY_MINUTES

    def __str__(self) -> str:
        until = "" if self.until is None else f" until {self.until:%Y-%m-%d %H:%M %Z}"
        return f"{','.join(self.days)} {self.hours} {self.time_zone}{until}"


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


StructuredKind = Literal["none", "any", "json_object", "json_schema", "regex", "choice", "grammar"]
_KINDS = frozenset(get_args(StructuredKind)) - {"any"}
ToolChoiceKind = Literal["none", "auto", "required", "named", "allowed"]
Pattern: TypeAlias = Annotated[str, spelt(r"[^*]+|[^*]*\*", "a text, or the beginning of one and a * behind it")]
"""A text, or its beginning and a *."""
Item = TypeVar("Item")
Tag: TypeAlias = Annotated[str, spelt(r"[A-Za-z0-9-]+", "a language tag such as de or de-AT")]


class Condition(Protocol):
    """A condition on one fact."""

    def holds(self, fact: object) -> bool: ...

    def witnesses(self) -> Iterable[object]:
        """Return facts for which it holds, among them the edges: what holds for all of them holds wherever it does."""
        ...


class Listed(RootModel[Annotated[tuple[Item, ...], Field(min_length=1)]], Generic[Item]):
    """One or more values, any of which will do; one may be given by itself."""

    model_config = STRICT

    @model_validator(mode="before")
    @classmethod
    def _listed(cls, value: object) -> object:
        return one_or_more(value)

    def witnesses(self) -> Iterable[object]:
        return self.root

    def __str__(self) -> str:
        return " or ".join(map(str, self.root))


class AnyWindow(Listed[TimeWindow]):
    @model_validator(mode="before")
    @classmethod
    def _listed(cls, value: object) -> object:
        return (value,) if isinstance(value, dict) else one_or_more(value)

    def holds(self, fact: object) -> bool:
        return any(window.holds(fact) for window in self.root)

    def witnesses(self) -> Iterable[object]:
        return chain.from_iterable(window.witnesses() for window in self.root)


class Names(Listed[Pattern]):
    """Any of these texts; of a fact that is several texts one is enough."""

    def holds(self, fact: object) -> bool:
        if isinstance(fact, str):
            return fact in self._whole or fact.startswith(self._beginnings)
        return isinstance(fact, Collection) and any(map(self.holds, fact))

    @cached_property
    def _whole(self) -> frozenset[str]:
        return frozenset(pattern for pattern in self.root if not pattern.endswith("*"))

    @cached_property
    def _beginnings(self) -> tuple[str, ...]:
        return tuple(pattern[:-1] for pattern in self.root if pattern.endswith("*"))

    def witnesses(self) -> Iterable[object]:
        return (*self._whole, *(beginning + _ANY for beginning in self._beginnings))


class Languages(Listed[Tag]):
    """Any of these languages; `de` stands for de-AT too (basic filtering, RFC 4647, section 3.3.1)."""

    def holds(self, fact: object) -> bool:
        return isinstance(fact, str) and f"{fact.lower()}-".startswith(tuple(f"{tag.lower()}-" for tag in self.root))


class Kinds(Listed[StructuredKind]):
    """Any of these forms of an answer; `any` stands for every form."""

    def holds(self, fact: object) -> bool:
        return fact in self._all

    def witnesses(self) -> Iterable[object]:
        return self._all

    @property
    def _all(self) -> frozenset[str]:
        named = frozenset(self.root)
        return (named | _KINDS - {"none"}) - {"any"} if "any" in named else named


class ToolChoices(Listed[ToolChoiceKind]):
    def holds(self, fact: object) -> bool:
        return fact in self.root


class TrueFlags(Listed[Name]):
    def holds(self, fact: object) -> bool:
        return isinstance(fact, Collection) and any(name in fact for name in self.root)

    def witnesses(self) -> Iterable[object]:
        return ({name} for name in self.root)


class Flag(RootModel[bool]):
    """true: only requests that have it; false: only those that have not."""

    model_config = STRICT

    def holds(self, fact: object) -> bool:
        return fact is self.root

    def witnesses(self) -> Iterable[object]:
        return (self.root,)

    def __str__(self) -> str:
        return str(self.root).lower()


class Range(Part):
    """A number between bounds, both included; one number stands for itself."""

    min: Number | None = None
    max: Number | None = None

    @model_validator(mode="before")
    @classmethod
    def _one_number(cls, value: object) -> object:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return {"min": value, "max": value}
        if not isinstance(value, dict) or not value:
            raise ValueError("allowed: a number, or a mapping of min, max or both")
        return value

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        if self.min is None and self.max is None:
            raise ValueError("allowed: min, max or both")
        return self

    @property
    def empty(self) -> bool:
        return self.min is not None and self.max is not None and self.min > self.max

    def holds(self, fact: object) -> bool:
        if not isinstance(fact, int | float):
            return False
        return (self.min is None or fact >= self.min) and (self.max is None or fact <= self.max)

    def witnesses(self) -> Iterable[object]:
        return -inf if self.min is None else self.min, inf if self.max is None else self.max

    def __str__(self) -> str:
        if self.min == self.max:
            return f"{self.min:g}"
        if self.min is None:
            return f"up to {self.max:g}"
        return f"{self.min:g} or more" if self.max is None else f"{self.min:g} to {self.max:g}"


class HeaderMatch(Part):
    """One header; a bare text is `exact`."""

    exact: str | None = None
    prefix: str | None = None
    present: bool | None = None  # true: any value will do; false: the header is not there

    @model_validator(mode="before")
    @classmethod
    def _text(cls, value: object) -> object:
        if isinstance(value, str):
            return {"exact": value}
        if not isinstance(value, dict):
            raise ValueError("allowed: a text, or a mapping of one of exact, prefix, present; numbers need quotes")
        return value

    @model_validator(mode="after")
    def _one(self) -> Self:
        if sum(given is not None for given in (self.exact, self.prefix, self.present)) != 1:
            raise ValueError("allowed: exactly one of exact, prefix, present")
        return self

    def holds(self, fact: object) -> bool:
        if not isinstance(fact, str):
            return self.present is False
        if self.exact is not None:
            return fact == self.exact
        return self.present is True if self.prefix is None else fact.startswith(self.prefix)

    @property
    def witness(self) -> str | None:
        if self.present is not None:
            return _ANY if self.present else None
        return self.exact if self.exact is not None else f"{self.prefix}{_ANY}"

    def __str__(self) -> str:
        if self.present is not None:
            return "present" if self.present else "absent"
        return self.exact if self.exact is not None else f"{self.prefix}*"


class Headers(RootModel[Annotated[dict[str, HeaderMatch], Field(min_length=1)]]):
    """Every one of these headers; names in any case."""

    model_config = STRICT

    @model_validator(mode="before")
    @classmethod
    def _lower(cls, value: object) -> object:
        if not isinstance(value, dict):
            raise ValueError("allowed: a mapping of header names")
        lower = {str(name).lower(): match for name, match in value.items()}
        if len(lower) < len(value):
            raise ValueError("names a header twice; allowed: once, in any case")
        return lower

    def holds(self, fact: object) -> bool:
        return isinstance(fact, Mapping) and all(match.holds(fact.get(name)) for name, match in self.root.items())

    def witnesses(self) -> Iterable[object]:
        return ({name: match.witness for name, match in self.root.items()},)

    def __str__(self) -> str:
        return ", ".join(f"{name}: {match}" for name, match in self.root.items())
