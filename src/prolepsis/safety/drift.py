"""What counts as drift and what as a cliff."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from prolepsis.core.stats import TrafficClassCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftSettings:
    """Detectors see bins: the mean over so many judged drafts and so much time that several requests are in each.

    Drafts of one request fare alike; bins that a single request fills would make every detector cry wolf.
    """

    bin_judged: int = 512
    """Judged drafts of a bin, at least."""
    bin_s: float = 10.0
    """Seconds of a bin, at least."""
    warm_up: int = 10
    """Bins before anything is said of drift."""
    adwin_delta: float = 0.002
    """ADWIN's bound on a false cut of a window without change."""
    bin_range: float = 0.2
    """ADWIN's bound is for values that may lie anywhere within a range of 1; means over bins stay within this much."""
    min_fall: float = 0.05
    """Falls of acceptance by less are no alarm."""
    gap_slack: float = 0.03
    """Page-Hinkley's delta: rises by less of what a proposer overestimates itself are tolerated."""
    gap_threshold: float = 0.5
    """Page-Hinkley's lambda: the sum of rises beyond that, over bins, that is an alarm."""
    cliff_judged: int = 256
    """Judged drafts of the window in which a cliff is seen, at least."""
    cliff_s: float = 10.0
    """Seconds of that window, at least."""
    cliff_share: float = 0.1
    """A cliff: acceptance at most this share of what it was."""
    cliff_from: float = 0.3
    """Acceptance before, at least: below there is nothing to fall from."""
    recovered_share: float = 0.5
    """A cliff is over where acceptance is this share of what it was."""


Kind = Literal[
    "drift",  # acceptance at position 1 fell for good
    "divergence",  # the proposer promises more than the target confirms, and more so than before
    "cliff",  # acceptance fell to nearly nothing at once: possible corruption
    "recovered",  # a cliff is over
]
Status = Literal["learning", "steady", "drifted", "cliff"]
STATUSES: tuple[Status, ...] = ("learning", "steady", "drifted", "cliff")
KINDS: tuple[Kind, ...] = ("drift", "divergence", "cliff", "recovered")


@dataclass(frozen=True, slots=True)
class DriftAlarm:
    """`before` and `after`: acceptance of first drafted tokens; of a divergence, by how much it is overestimated."""

    at: float
    """Seconds of the clock that the watch runs on."""
    proposer: str
    traffic_class: str
    version: str
    kind: Kind
    before: float
    after: float
    num_judged: int
    """Drafts judged since the version was put in."""


class RecentShare:
    """Share of right first tokens over the shortest time that holds at least `least` judged drafts and `seconds`.

    That long, so that one request that nobody could draft for does not fill it.
    """

    def __init__(self, least: int, seconds: float) -> None:
        self._least = least
        self._seconds = seconds
        self._readings: deque[tuple[float, int, int]] = deque()

    def add(self, reading: TrafficClassCounts, now: float) -> None:
        """Take in a reading at `now` (seconds) that has more judged drafts than the one before.

        At most so many readings are kept as come within `seconds`, and `least`.
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
        """Begin anew after `reading`."""
        self._readings = deque([(now, reading.num_judged, reading.num_right)])

    def _is_enough(self, i: int) -> bool:
        """Whether what came after the reading `i` is enough."""
        (began, first, _), (now, last, _) = self._readings[i], self._readings[-1]
        return last - first >= self._least and now - began >= self._seconds


def load_detectors() -> None:
    """Import them, and all of scipy with them: more than a second, which neither a start nor an event loop has."""
    import river.drift  # noqa: F401


class Stream:
    """Begins at a reading. Times in seconds, of one monotonic clock. Its size does not depend on what it has seen.

    Acceptance at position 1: ADWIN (Bifet and Gavalda 2007). What the proposer gave its first token, less what came
    true: Page-Hinkley (Page 1954). Both as river has them. While there is a cliff neither sees anything, so what is
    compared with stays what it was before.
    """

    def __init__(self, reading: TrafficClassCounts, version: str, now: float, settings: DriftSettings) -> None:
        from river.drift import ADWIN, PageHinkley

        self.version = version
        self.since = now
        self.status: Status = "learning"
        self.acceptance: float | None = None
        """Over the time without a change, as ADWIN has it; None before the first bin."""
        self.overestimated: float | None = None
        """By how much the proposer overestimated its acceptance in the last bin; None where it has no estimates."""
        self.seen = reading
        self.num_bins = 0
        self._began = reading
        self._settings = settings
        self._bin = reading
        self._bin_began = now
        self._few = settings.warm_up // 2
        self._recent = RecentShare(settings.cliff_judged, settings.cliff_s)
        self._recent.clear(reading, now)
        self._adwin = ADWIN(  # type: ignore[no-untyped-call]  # river's own gap
            delta=settings.adwin_delta, clock=1, min_window_length=self._few, grace_period=settings.warm_up
        )
        self._waiting: tuple[float, float | None] | None = None  # share and overestimate of the last bin
        self._bins: deque[float] = deque(maxlen=self._few)
        self._gap = PageHinkley(
            min_instances=settings.warm_up,
            delta=settings.gap_slack,
            threshold=settings.gap_threshold,
            mode="up",
        )
        self._gap_sum = 0.0
        self._num_gaps = 0

    @property
    def num_judged(self) -> int:
        return self.seen.num_judged - self._began.num_judged

    @property
    def recent(self) -> float | None:
        """Acceptance over the last judged drafts."""
        return self._recent.value

    def observe(self, reading: TrafficClassCounts, now: float) -> list[DriftAlarm]:
        """Take in a reading of counts that only grow; return what is noticed."""
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
        """Compare with the bins closed before; the first half of the warm-up is enough for that."""
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
        """Show the detectors the bin before: in the meantime a cliff that began in it would have been seen."""
        first, last, shown = self._bin, self.seen, self._waiting
        self._bin, self._bin_began = last, now
        num_judged, num_estimated = last.num_judged - first.num_judged, last.num_estimated - first.num_estimated
        gap = (last.overestimated - first.overestimated) / num_estimated if 2 * num_estimated >= num_judged else None
        self._waiting = ((last.num_right - first.num_right) / num_judged, gap)
        if shown is None:
            return []
        self.num_bins += 1
        if self.status == "learning" and self.num_bins >= self._settings.warm_up:
            self.status = "steady"
        share, gap = shown
        return [*self._see_acceptance(share, now), *(self._see_gap(gap, now) if gap is not None else [])]

    def _see_acceptance(self, share: float, now: float) -> list[DriftAlarm]:
        """ADWIN begins anew after a change; what it has then is too little, so the last bins stand in for it."""
        before = self.acceptance
        self._bins.append(share)
        self._adwin.update(share / self._settings.bin_range)  # type: ignore[no-untyped-call]
        if not self._adwin.drift_detected:
            if before is None or self._adwin.width >= self._few:
                self.acceptance = self._adwin.estimation * self._settings.bin_range
            return []
        after = self.acceptance = fmean(self._bins)
        if before is None or before - after < self._settings.min_fall:
            return []
        self.status = "drifted"
        return [self._alarm("drift", now, before, after)]

    def _see_gap(self, gap: float, now: float) -> list[DriftAlarm]:
        before = self._gap_sum / self._num_gaps if self._num_gaps else gap
        self._gap.update(gap)  # type: ignore[no-untyped-call]
        self.overestimated = gap
        self._gap_sum, self._num_gaps = self._gap_sum + gap, self._num_gaps + 1
        if not self._gap.drift_detected:
            return []
        self._gap_sum, self._num_gaps = 0.0, 0
        self.status = "drifted"
        return [self._alarm("divergence", now, before, gap)]

    def _alarm(self, kind: Kind, now: float, before: float | None, after: float | None) -> DriftAlarm:
        assert before is not None, "an alarm compares"
        assert after is not None, "an alarm compares"
        seen = self.seen
        return DriftAlarm(now, seen.proposer, seen.traffic_class, self.version, kind, before, after, self.num_judged)


Key = tuple[str, str]
"""Proposer and traffic class."""


class DriftBoard:
    """A stream for each pair that the engine counts, begun anew where its proposer's version changes."""

    def __init__(self, settings: DriftSettings | None = None) -> None:
        self._settings = settings or DriftSettings()
        self._streams: dict[Key, Stream] = {}

    @property
    def streams(self) -> Mapping[Key, Stream]:
        return self._streams

    def observe(
        self, counts: Iterable[TrafficClassCounts], version_of: Callable[[str], str], now: float
    ) -> list[DriftAlarm]:
        """Take in the engine's counts; return what is noticed. `version_of` says what a proposer's name stands for."""
        alarms: list[DriftAlarm] = []
        for reading in counts:
            key = (reading.proposer, reading.traffic_class)
            stream, version = self._streams.get(key), version_of(reading.proposer)
            if stream is None or stream.version != version or reading.num_judged < stream.seen.num_judged:
                self._streams[key] = Stream(reading, version, now, self._settings)
            elif reading.num_judged > stream.seen.num_judged:
                alarms += stream.observe(reading, now)
        return alarms

    def reset(self, proposer: str, traffic_class: str, now: float) -> Stream:
        """Begin one anew, as after a deployment; raises `KeyError` where there is no such stream."""
        stream = self._streams[proposer, traffic_class]
        fresh = self._streams[proposer, traffic_class] = Stream(stream.seen, stream.version, now, self._settings)
        return fresh
