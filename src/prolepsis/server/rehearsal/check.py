"""Holds a forecast against what was measured for the same requests."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from prolepsis.control.statistics.percentile import percentile
from prolepsis.core.errors import ConfigError
from prolepsis.server.rehearsal.rehearsal import Rehearsal, RehearsedRequest
from prolepsis.server.rehearsal.trace import Trace

SHARES = (0.5, 0.95, 0.99)


@dataclass(frozen=True, slots=True)
class Compared:
    """A percentile of one time, in seconds; `share` is of the requests."""

    what: str
    share: float
    measured: float
    forecast: float

    @property
    def error(self) -> float:
        """Relative to what was measured; above 0: the forecast is too slow."""
        return self.forecast / self.measured - 1.0


def check(trace: Trace, rehearsal: Rehearsal) -> list[Compared]:
    """Return the errors of a forecast of `trace`; raises `ConfigError` if it says nothing of what was measured."""
    measured: dict[str, list[float]] = {"time to first token": [], "time a token": [], "end to end": []}
    for line in trace.lines:
        if line.measured is not None:
            first, total = line.measured.first_token_s, line.measured.total_s
            measured["time to first token"].append(first)
            measured["end to end"].append(total)
            if line.output > 1:
                measured["time a token"].append((total - first) / (line.output - 1))
    if not measured["end to end"]:
        raise ConfigError("no request of the trace says what it took; allowed: a recording", param="trace")
    return _compared(measured, times(rehearsal.outcomes))


def times(outcomes: Sequence[RehearsedRequest]) -> dict[str, list[float]]:
    """Return the times of the requests that were served, in seconds."""
    return {
        "time to first token": [one.first_token_s for one in outcomes if one.first_token_s is not None],
        "time a token": [one.per_token_s for one in outcomes if one.per_token_s is not None],
        "end to end": [one.total_s for one in outcomes if one.total_s is not None],
    }


def _compared(measured: Mapping[str, Sequence[float]], forecast: Mapping[str, Sequence[float]]) -> list[Compared]:
    found = []
    for what, values in measured.items():
        for share in SHARES:
            was, now = percentile(values, share), percentile(forecast[what], share)
            if was is not None and now is not None:
                found.append(Compared(what, share, was, now))
    return found
