"""One proposer, in one version, in one slice: its detectors, fed from readings of the engine's counts."""

from collections import deque
from statistics import fmean

from prolepsis.control.drift.alarm import DriftAlarm, Kind, Status
from prolepsis.control.drift.cliff import RecentShare
from prolepsis.control.drift.settings import DriftSettings
from prolepsis.core.slice_counts import SliceCounts


def load_detectors() -> None:
    """Import them, and all of scipy with them: more than a second, which neither a start nor an event loop has."""
    import river.drift  # noqa: F401


class Stream:
    """Begins at a reading. Times in seconds, of one monotonic clock. Its size does not depend on what it has seen.

    Acceptance at position 1: ADWIN (Bifet and Gavalda 2007). What the proposer gave its first token, less what came
    true: Page-Hinkley (Page 1954). Both as river has them. While there is a cliff neither sees anything, so what is
    compared with stays what it was before.
    """

    def __init__(self, reading: SliceCounts, version: str, now: float, settings: DriftSettings) -> None:
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

    def observe(self, reading: SliceCounts, now: float) -> list[DriftAlarm]:
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
        return DriftAlarm(now, seen.proposer, seen.slice, self.version, kind, before, after, self.num_judged)
