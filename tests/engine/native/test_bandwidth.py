"""The measured bandwidth is that of memory or a cache, not of a read that was left out."""

from prolepsis.engine.native.bandwidth import read_bandwidth


def test_reading_takes_time_and_is_not_slow() -> None:
    assert 1e8 < read_bandwidth(1 << 24, threads=1, seconds=0.01) < 1e12
    assert read_bandwidth(1, threads=2, seconds=0.0) > 0
