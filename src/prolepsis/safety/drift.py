"""Drift of a proposer's acceptance in one traffic class: slow (drift) or sudden (a cliff). Pure detectors."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from prolepsis.core.stats import TrafficClassCounts
from prolepsis.safety.detectors import Adwin, PageHinkley

Kind = Literal[
    "drift",  # acceptance at position 1 fell and stays low
    "divergence",  # the proposer overestimates its acceptance more than before
    "cliff",  # acceptance suddenly fell to nearly nothing: possible corruption
    "recovered",  # a cliff is over
]
Status = Literal["learning", "steady", "drifted", "cliff"]
STATUSES: tuple[Status, ...] = ("learning", "steady", "drifted", "cliff")
Key = tuple[str, str]
"""Proposer and traffic class."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftSettings:
    """The detectors see bins: means over enough judged drafts and enough time to contain several requests.

    The drafts of one request do about equally well. If single requests filled the bins, every detector would give
    false alarms.
    """

    bin_judged: int = 512
    """Minimum number of judged drafts in a bin."""
    bin_s: float = 10.0
    """Minimum duration of a bin in seconds."""
    warm_up: int = 10
    """Bins before the first drift alarm."""
    adwin_delta: float = 0.002
    """ADWIN's bound on a false cut of a window without change."""
    bin_range: float = 0.2
    """ADWIN's bound is for values within a range of 1; means over bins stay within this range."""
    min_fall: float = 0.05
    """Smaller falls of acceptance raise no alarm."""
    gap_slack: float = 0.03
    """Page-Hinkley's delta: smaller rises of the overestimation are tolerated."""
    gap_threshold: float = 0.5
    """Page-Hinkley's lambda: the sum over bins of larger rises that raises an alarm."""
    cliff_judged: int = 256
    """Minimum number of judged drafts in the window in which a cliff is detected."""
    cliff_s: float = 10.0
    """Minimum duration of that window in seconds."""
    cliff_share: float = 0.1
    """A cliff: acceptance is at most this share of its earlier value."""
    cliff_from: float = 0.3
    """Minimum acceptance before a cliff: below it there is nothing to fall from."""
    recovered_share: float = 0.5
    """A cliff is over when acceptance reaches this share of its earlier value."""


@dataclass(frozen=True, slots=True)
class DriftAlarm:
    """`before` and `after`: acceptance of first drafted tokens; for a divergence the overestimation."""

    at: float
    """Seconds of the server's monotonic clock."""
    proposer: str
    traffic_class: str
    version: str
    kind: Kind
    before: float
    after: float
    num_judged: int
    """Drafts judged since this version was deployed."""


class _RecentShare:
    """Share of right first tokens over the shortest recent time with at least `min_judged` drafts and `min_s` seconds.

    The minimum duration keeps a single request that is hard to draft for from filling the window.
    """

    def __init__(self, min_judged: int, min_s: float) -> None:
        self._min_judged = min_judged
        self._min_s = min_s
        self._readings: deque[tuple[float, int, int]] = deque()

    def add(self, reading: TrafficClassCounts, now: float) -> None:
        """Take in a reading at `now` (seconds) that has more judged drafts than the one before.

        The number of readings kept is bounded by those within `min_s`, and by `min_judged`.
        """
        self._readings.append((now, reading.num_judged, reading.num_right))
        while len(self._readings) > 1 and self._is_enough(1):
            self._readings.popleft()

    @property
    def value(self) -> float | None:
        """None before there is enough."""
        if not self._readings or not self._is_enough(0):
            return None
        (_, first, right_first), (_, last, right_last) = self._readings[0], self._readings[-1]
        return (right_last - right_first) / (last - first)

    def clear(self, reading: TrafficClassCounts, now: float) -> None:
        """Start again after `reading`."""
        self._readings = deque([(now, reading.num_judged, reading.num_right)])

    def _is_enough(self, i: int) -> bool:
        """Return whether the readings after number `i` are enough."""
        (began, first, _), (now, last, _) = self._readings[i], self._readings[-1]
        return last - first >= self._min_judged and now - began >= self._min_s


class DriftStream:
    """The detectors of one proposer, in one version, for one traffic class, fed from the engine's counts.

    Times in seconds of one monotonic clock; the size is constant. Acceptance at position 1: ADWIN (Bifet and Gavalda
    2007). The proposer's estimate for its first token less the outcome: Page-Hinkley (Page 1954). Both are paused
    during a cliff, so the baseline stays the one before it.
    """

    def __init__(self, reading: TrafficClassCounts, version: str, now: float, settings: DriftSettings) -> None:
        self.version = version
        self.since = now
        self.status: Status = "learning"
        self.acceptance: float | None = None
        """Over ADWIN's current window; None before the first bin."""
        self.overestimated: float | None = None
        """How much the proposer overestimated its acceptance in the last bin; None if it gives no estimates."""
        self.seen = reading
        self.num_bins = 0
        self._began = reading
        self._settings = settings
        self._bin = reading
        self._bin_began = now
        self._few = settings.warm_up // 2
        self._recent = _RecentShare(settings.cliff_judged, settings.cliff_s)
        self._recent.clear(reading, now)
        self._adwin = Adwin(settings.adwin_delta, min_length=self._few, grace_period=settings.warm_up)
        self._waiting: tuple[float, float | None] | None = None  # share and overestimate of the last bin
        self._bins: deque[float] = deque(maxlen=self._few)
        self._gap = PageHinkley(
            min_instances=settings.warm_up, delta=settings.gap_slack, threshold=settings.gap_threshold
        )
        self._gap_sum = 0.0
        self._num_gaps = 0

    @property
    def num_judged(self) -> int:
        return self.seen.num_judged - self._began.num_judged

    @property
    def recent_acceptance(self) -> float | None:
        """Acceptance over the window in which cliffs are detected."""
        return self._recent.value

    def observe(self, reading: TrafficClassCounts, now: float) -> list[DriftAlarm]:
        """Take in a reading of counts that only grow; return the alarms."""
        self.seen = reading
        self._recent.add(reading, now)
        if self.status == "cliff":
            return self._recover(now)
        if self._is_cliff():
            return [self._cliff(now)]
        if reading.num_judged - self._bin.num_judged < self._settings.bin_judged:
            return []
        return self._close_bin(now) if now - self._bin_began >= self._settings.bin_s else []

    def _is_cliff(self) -> bool:
        """Compare with the closed bins; half of the warm-up is enough for that."""
        recent, before = self._recent.value, self.acceptance
        if recent is None or before is None or self.num_bins < self._few:
            return False
        return before >= self._settings.cliff_from and recent <= self._settings.cliff_share * before

    def _cliff(self, now: float) -> DriftAlarm:
        alarm = self._alarm("cliff", now, self.acceptance, self._recent.value)
        self.status, self._waiting = "cliff", None
        self._recent.clear(self.seen, now)
        return alarm

    def _recover(self, now: float) -> list[DriftAlarm]:
        recent, before = self._recent.value, self.acceptance
        assert before is not None, "there was something to fall from"
        if recent is None or recent < self._settings.recovered_share * before:
            return []
        self.status = "steady"
        self._bin, self._bin_began = self.seen, now
        return [self._alarm("recovered", now, before, recent)]

    def _close_bin(self, now: float) -> list[DriftAlarm]:
        """Give the detectors the bin before this one: a cliff that began in it would have been seen meanwhile."""
        first, last, ready = self._bin, self.seen, self._waiting
        self._bin, self._bin_began = last, now
        num_judged, num_estimated = last.num_judged - first.num_judged, last.num_estimated - first.num_estimated
        gap = (last.overestimated - first.overestimated) / num_estimated if 2 * num_estimated >= num_judged else None
        self._waiting = ((last.num_right - first.num_right) / num_judged, gap)
        if ready is None:
            return []
        self.num_bins += 1
        if self.status == "learning" and self.num_bins >= self._settings.warm_up:
            self.status = "steady"
        share, gap = ready
        return [*self._see_acceptance(share, now), *(self._see_gap(gap, now) if gap is not None else [])]

    def _see_acceptance(self, share: float, now: float) -> list[DriftAlarm]:
        """Update ADWIN. Its window is too short just after a change, so the mean of the last bins replaces it."""
        before = self.acceptance
        self._bins.append(share)
        self._adwin.update(share / self._settings.bin_range)
        if not self._adwin.detected:
            if before is None or self._adwin.width >= self._few:
                self.acceptance = self._adwin.mean * self._settings.bin_range
            return []
        after = self.acceptance = fmean(self._bins)
        if before is None or before - after < self._settings.min_fall:
            return []
        self.status = "drifted"
        return [self._alarm("drift", now, before, after)]

    def _see_gap(self, gap: float, now: float) -> list[DriftAlarm]:
        before = self._gap_sum / self._num_gaps if self._num_gaps else gap
        self._gap.update(gap)
        self.overestimated = gap
        self._gap_sum, self._num_gaps = self._gap_sum + gap, self._num_gaps + 1
        if not self._gap.detected:
            return []
        self._gap_sum, self._num_gaps = 0.0, 0
        self.status = "drifted"
        return [self._alarm("divergence", now, before, gap)]

    def _alarm(self, kind: Kind, now: float, before: float | None, after: float | None) -> DriftAlarm:
        assert before is not None, "an alarm compares"
        assert after is not None, "an alarm compares"
        seen = self.seen
        return DriftAlarm(now, seen.proposer, seen.traffic_class, self.version, kind, before, after, self.num_judged)


class DriftStreams:
    """One stream for each pair that the engine counts; it starts again when its proposer's version changes."""

    def __init__(self, settings: DriftSettings | None = None) -> None:
        self._settings = settings or DriftSettings()
        self._streams: dict[Key, DriftStream] = {}

    @property
    def all(self) -> Mapping[Key, DriftStream]:
        return self._streams

    def observe(
        self, counts: Iterable[TrafficClassCounts], version_of: Callable[[str], str], now: float
    ) -> list[DriftAlarm]:
        """Take in the engine's counts; return the alarms. `version_of` maps a proposer's name to its version."""
        alarms: list[DriftAlarm] = []
        for reading in counts:
            key = (reading.proposer, reading.traffic_class)
            stream, version = self._streams.get(key), version_of(reading.proposer)
            if stream is None or stream.version != version or reading.num_judged < stream.seen.num_judged:
                self._streams[key] = DriftStream(reading, version, now, self._settings)
            elif reading.num_judged > stream.seen.num_judged:
                alarms += stream.observe(reading, now)
        return alarms

    def reset(self, key: Key, now: float) -> DriftStream:
        """Start a stream again, as after a deployment; raises `KeyError` for an unknown one."""
        stream = self._streams[key]
        fresh = self._streams[key] = DriftStream(stream.seen, stream.version, now, self._settings)
        return fresh
