"""Forecasts over several loads: what a policy would bring against plain decoding, and where it stops paying."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from prolepsis.control.statistics.percentile import percentile
from prolepsis.server.rehearsal.check import SHARES, WHOLE, times
from prolepsis.server.rehearsal.control import ControlChange
from prolepsis.server.rehearsal.goal import LatencyGoal
from prolepsis.server.rehearsal.rehearsal import Rehearsal, RehearsedServer, rehearse
from prolepsis.server.rehearsal.trace import Trace

PAYS = 0.99
"""Share of the plain time per request at which speculation still counts as paying."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadForecast:
    """The forecast of one load and mode."""

    mode: str
    rate: float
    """Times the arrivals of the trace."""
    per_second: float
    """Requests that arrive in a second."""
    num_at_once: float
    """Requests in the system, on average (Little's law)."""
    num_refused: int
    tokens_per_second: float
    tokens_a_pass: float
    """Of a sequence."""
    goodput: float
    """Requests a second that keep the goal."""
    percentiles: Mapping[str, Mapping[str, float]]
    """Seconds, by time, in the order of `times`, and percentile."""
    extrapolated: float
    """Share of drafts that are not known where they were made, or as far as they would have gone."""
    changes: Sequence[ControlChange] = ()
    """What the control did."""


def forecasts(
    trace: Trace, setting: RehearsedServer, rates: Sequence[float], goal: LatencyGoal
) -> list[tuple[LoadForecast, LoadForecast]]:
    """Return for each rate what plain decoding would do, and what the setting would."""
    found = []
    for rate in rates:
        played = trace.scaled(rate=rate)
        plain, own = (
            _forecast(played, rehearse(played, one), one.mode, rate, goal)
            for one in (replace(setting, mode="off"), setting)
        )
        found.append((plain, own))
    return found


def stops_paying(pairs: Sequence[tuple[LoadForecast, LoadForecast]]) -> LoadForecast | None:
    """Return the lightest load at which speculation no longer makes the median request faster; None: nowhere here."""
    for plain, own in sorted(pairs, key=lambda pair: pair[0].rate):
        before, now = (one.percentiles[WHOLE].get("p50", 0.0) for one in (plain, own))
        if now > PAYS * before:
            return own
    return None


def _forecast(trace: Trace, rehearsal: Rehearsal, mode: str, rate: float, goal: LatencyGoal) -> LoadForecast:
    served = rehearsal.served
    kept = [one for one in served if goal.is_kept(one.first_token_s, one.per_token_s)]
    seconds = max(rehearsal.seconds, 1e-9)
    drafts = [counts for counts in rehearsal.replayed.values() if counts]
    known = sum(counts.get("exact", 0) - counts.get("cut", 0) for counts in drafts)
    made = sum(counts.get("exact", 0) + counts.get("moved", 0) for counts in drafts)
    return LoadForecast(
        mode=mode,
        rate=rate,
        per_second=len(trace.lines) / max(trace.lines[-1].at, 1e-9),
        num_at_once=sum(one.total_s or 0.0 for one in served) / seconds,
        num_refused=sum(one.error is not None for one in rehearsal.outcomes),
        tokens_per_second=rehearsal.tokens_per_second,
        tokens_a_pass=rehearsal.tokens_a_pass,
        goodput=len(kept) / seconds,
        percentiles={
            what: {f"p{round(100 * share)}": percentile(values, share) or 0.0 for share in SHARES}
            for what, values in times(served).items()
        },
        extrapolated=1.0 - known / made if made else 0.0,
        changes=rehearsal.changes,
    )
