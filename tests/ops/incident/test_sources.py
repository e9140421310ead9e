"""Lines of a log in a period."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from prolepsis.core.errors import ConfigError
from prolepsis.ops.incident import sources
from prolepsis.ops.incident.period import Period
from prolepsis.ops.incident.sources import lines_of

START = datetime(2026, 11, 22, 18, 0, tzinfo=UTC)
PERIOD = Period(START, START + timedelta(minutes=15))
TEXT = """\
2026-11-22T17:59:59.9Z [info] before
lost with it
2026-11-22T18:00:00.0Z [error] during
Traceback (most recent call last)
2026-11-22T18:15:00Z [info] after
"""
JSON = """\
{"event": "before", "timestamp": "2026-11-22T17:59:59.900000Z"}
{"event": "during", "timestamp": "2026-11-22T18:14:59.900000Z"}
{"event": "after", "timestamp": "2026-11-22T18:15:00.000000Z"}
"""


def test_a_traceback_stays_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(TEXT)
    assert lines_of(tmp_path / "log", PERIOD).splitlines() == TEXT.splitlines()[2:4]


def test_json_lines_have_their_time_in_a_field(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(JSON)
    assert lines_of(tmp_path / "log", PERIOD).splitlines() == JSON.splitlines()[1:2]


def test_a_long_log_is_cut_at_its_beginning_and_says_so(tmp_path: Path) -> None:
    line = "2026-11-22T18:00:00Z " + "x" * 1000
    (tmp_path / "log").write_text("\n".join([line] * (sources.MOST_KEPT // 1000 + 10)))
    kept = lines_of(tmp_path / "log", PERIOD)
    assert kept.startswith("(earlier lines")
    assert set(kept.splitlines()[1:]) == {line}
    assert len(kept) < sources.MOST_KEPT + 100


def test_a_log_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        lines_of(tmp_path / "none", PERIOD)
