"""The period that a report is about, and how people write times."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from prolepsis.core.errors import ConfigError

_AGO = re.compile(r"(\d{1,5})([mhd])")
_UNITS = {"m": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1)}


@dataclass(frozen=True, slots=True)
class Period:
    """From `start` up to and without `end`, both with a time zone."""

    start: datetime
    end: datetime

    @property
    def seconds(self) -> float:
        return (self.end - self.start).total_seconds()

    def __str__(self) -> str:
        return f"{self.start.astimezone(UTC):%Y-%m-%d %H:%M:%S} to {self.end.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def period(start: str, end: str, now: datetime) -> Period:
    """Return the period between two times as people write them; raises `ConfigError`."""
    parsed = Period(parse_time(start, now, "from"), parse_time(end, now, "to"))
    if parsed.start >= parsed.end:
        raise ConfigError(f"--from is {start!r} and --to is {end!r}; allowed: --from before --to", param="from")
    return parsed


def parse_time(text: str, now: datetime, option: str) -> datetime:
    """Return a time: now, so long ago, or ISO 8601, without a zone in UTC; raises `ConfigError`."""
    if text == "now":
        return now
    if ago := _AGO.fullmatch(text):
        return now - int(ago[1]) * _UNITS[ago[2]]
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        allowed = "allowed: now, so long ago such as 15m, 6h or 7d, or a time such as 2026-11-22T18:30"
        raise ConfigError(f"--{option} is {text[:64]!r}; {allowed}", param=option) from None
    return time if time.tzinfo else time.replace(tzinfo=UTC)
