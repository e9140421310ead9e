"""What counts as drift and what as a cliff."""

from dataclasses import dataclass


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
