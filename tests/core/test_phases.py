"""Phases of a start: what they say of themselves, and to whom."""

import time

import pytest
from structlog.testing import capture_logs

from prolepsis.core.phases import LoggedPhases, Phase, Phases, phase, watched_phases, watching
from tests.waiting import wait_for


@pytest.mark.parametrize(
    ("seconds", "total", "done", "in_bytes", "words"),
    [
        (0, None, 0, False, "reading weights"),
        (0, 12, 3, False, "reading weights 3 of 12"),
        (100, 100, 50, False, "reading weights 50 of 100, about 100 s left"),
        (100, 100, 0, False, "reading weights 0 of 100"),
        (100, 100, 120, False, "reading weights 100"),
        (0, 2 << 20, 1 << 20, True, "reading weights 1 MiB of 2 MiB"),
    ],
)
def test_a_phase_says_how_far_it_is_and_how_long_it_takes_yet(
    seconds: float, total: int | None, done: int, in_bytes: bool, words: str
) -> None:
    given = Phase("reading weights", total, in_bytes, done, time.monotonic() - seconds)
    assert given.describe() == words


def test_the_innermost_phase_is_the_one_under_way_and_all_that_end_are_kept() -> None:
    phases = Phases()
    with watching(phases):
        assert watched_phases() is phases
        with phase("reading weights"), phase("preparing kernels"):
            assert phases.current.what == "preparing kernels"
        with pytest.raises(ValueError, match="broken"), phase("planning memory"):
            raise ValueError("broken")
    assert phases.current.what == "loading"
    assert list(phases.seconds) == ["preparing kernels", "reading weights"], "one that failed has not ended"
    assert watched_phases() is None


def test_a_phase_that_nobody_watches_is_counted_by_its_block_alone() -> None:
    with phase("reading weights", 2) as reading:
        reading.done += 1
    assert reading.amount == "1 of 2"


def test_a_long_phase_writes_a_line_before_its_end_and_a_short_one_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prolepsis.core.phases._LOG_EVERY_S", 0.0)
    with capture_logs() as lines, watching(Phases(LoggedPhases())):
        with phase("planning memory"):
            pass
        assert not [line for line in lines if line["event"] == "start_phase"]
        with phase("reading weights", 4) as reading:
            reading.done = 2
            wait_for(lambda: "reading weights 2 of 4" in [line["phase"] for line in list(lines)])
            reading.done, reading.began = 4, reading.began - 1.0
    assert [line["phase"] for line in lines if line["event"] == "start_phase"] == ["reading weights 4"]
