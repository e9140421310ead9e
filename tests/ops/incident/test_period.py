"""Times as people write them."""

from datetime import UTC, datetime, timedelta

import pytest

from prolepsis.core.errors import ConfigError
from prolepsis.ops.incident.period import parse_time, period

NOW = datetime(2026, 11, 22, 18, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("now", NOW),
        ("15m", NOW - timedelta(minutes=15)),
        ("6h", NOW - timedelta(hours=6)),
        ("7d", NOW - timedelta(days=7)),
        ("2026-11-22T18:00", NOW - timedelta(minutes=30)),
        ("2026-11-22T20:00+02:00", NOW - timedelta(minutes=30)),
    ],
)
def test_a_time_is_now_so_long_ago_or_iso(text: str, time: datetime) -> None:
    assert parse_time(text, NOW, "from") == time


@pytest.mark.parametrize("text", ["yesterday", "", "15", "3w", "-1h"])
def test_another_text_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--from is .*allowed: now, so long ago"):
        parse_time(text, NOW, "from")


def test_a_period_ends_after_its_start() -> None:
    assert period("1h", "now", NOW).seconds == 3600
    with pytest.raises(ConfigError, match="--from before --to"):
        period("now", "1h", NOW)
