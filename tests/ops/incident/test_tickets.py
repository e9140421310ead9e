"""A finding is one ticket in a period of the calendar, whenever the review is made."""

import json
from datetime import UTC, datetime

import pytest

from prolepsis.control.store.database import Database
from prolepsis.ops.incident.review import ReviewFinding
from prolepsis.ops.incident.tickets import post_new
from tests.loopback import Reply, Request, serving

FINDING = ReviewFinding("a breaker opened", "suffix chat", "2 x", "platform")


@pytest.mark.parametrize(
    ("length", "ends", "named"),
    [
        ("day", ("2026-11-29T00:00", "2026-11-29T23:59", "2026-11-30T00:00"), "2026-11-29"),
        ("week", ("2026-12-28T00:00", "2027-01-03T23:59", "2027-01-04T00:00"), "2026-W53"),
        ("month", ("2026-11-01T00:00", "2026-11-30T23:59", "2026-12-01T00:00"), "2026-11"),
        ("quarter", ("2026-10-01T00:00", "2026-12-31T23:59", "2027-01-01T00:00"), "2026-Q4"),
    ],
)
def test_a_ticket_is_of_a_period(database: Database, length: str, ends: tuple[str, ...], named: str) -> None:
    taken: list[dict[str, str]] = []

    def take(request: Request) -> Reply:
        taken.append(json.loads(request.body))
        return Reply(202)

    times = [datetime.fromisoformat(end).replace(tzinfo=UTC) for end in ends]
    with serving(take) as url:
        assert [post_new([FINDING], url, length, time, database) for time in times] == [1, 0, 1]
    one, other = taken
    assert one["key"] != other["key"]
    assert one | {"key": ""} == {
        **{"key": "", "period": named, "what": "a breaker opened", "subject": "suffix chat"},
        **{"why": "2 x", "owner": "platform"},
    }
