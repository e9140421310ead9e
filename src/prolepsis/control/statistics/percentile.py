"""Percentiles of a list of values."""

from collections.abc import Iterable


def percentile(values: Iterable[float], share: float) -> float | None:
    """Return the value below which `share` (0 to 1) of `values` lie, interpolated between neighbours; None of none."""
    ordered = sorted(values)
    if not ordered:
        return None
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])
