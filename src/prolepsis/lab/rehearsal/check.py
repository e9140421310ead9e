"""Holds a forecast against what was measured for the same requests."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from prolepsis.control.statistics.percentile import percentile
from prolepsis.core.errors import ConfigError
from prolepsis.lab.rehearsal.rehearsal import Rehearsal, RehearsedRequest, RehearsedServer, rehearse
from prolepsis.lab.rehearsal.trace import Trace
from prolepsis.lab.virtual_engine.machine import LastCheck, Machine

SHARES = (0.5, 0.95, 0.99)
FIRST, EACH, WHOLE = "time to first token", "time a token", "end to end"
OUTPUT = "tokens a second"


@dataclass(frozen=True, slots=True)
class Compared:
    """A figure as it was measured and as it was forecast."""

    what: str
    share: float | None  # of the requests: a percentile; None: a figure of all of them
    measured: float
    forecast: float
    unit: Literal["s", ""] = "s"

    @property
    def figure(self) -> str:
        return self.what if self.share is None else figure_of(self.what, self.share)

    @property
    def error(self) -> float:
        """Relative to what was measured; above 0: the forecast is too high."""
        return self.forecast / self.measured - 1.0


def check(trace: Trace, rehearsal: Rehearsal) -> list[Compared]:
    """Return the errors of a forecast of `trace`; raises `ConfigError` if it says nothing of what was measured."""
    lines = [(line, line.measured) for line in trace.lines if line.measured is not None]
    if not lines:
        raise ConfigError("no request of the trace says what it took; allowed: a recording", param="trace")
    measured = {
        FIRST: [took.first_token_s for _, took in lines],
        EACH: [(took.total_s - took.first_token_s) / (line.output - 1) for line, took in lines if line.output > 1],
        WHOLE: [took.total_s for _, took in lines],
    }
    num_tokens, num_steps = sum(line.output for line, _ in lines), sum(took.num_steps for _, took in lines)
    end = max(line.at + took.total_s for line, took in lines)
    known = replace(rehearsal, outcomes=[answer for answer in rehearsal.outcomes if answer.line.measured is not None])
    return [
        *_compared(measured, times(known.outcomes)),
        Compared("tokens a pass", None, num_tokens / max(1, num_steps), known.tokens_a_pass, ""),
        Compared(OUTPUT, None, num_tokens / end, known.tokens_per_second, ""),
    ]


def checked(setting: RehearsedServer, traces: Sequence[Trace]) -> tuple[Machine, list[list[Compared]]]:
    """Return the machine with its last check, which is made now, and what was compared for each recording."""
    compared = [check(trace, rehearse(trace, setting)) for trace in traces]
    errors: dict[str, list[float]] = {}
    for row in (row for of_trace in compared for row in of_trace):
        errors.setdefault(row.figure, []).append(row.error)
    num_requests = sum(line.measured is not None for trace in traces for line in trace.lines)
    last = LastCheck(
        at=time.time(),
        num_requests=num_requests,
        errors={figure: sorted(of_figure, key=abs)[len(of_figure) // 2] for figure, of_figure in errors.items()},
    )
    return replace(setting.machine, checks={**setting.machine.checks, setting.mode: last}), compared


def times(outcomes: Sequence[RehearsedRequest]) -> dict[str, list[float]]:
    """Return the times of the requests that were served, in seconds."""
    return {
        FIRST: [outcome.first_token_s for outcome in outcomes if outcome.first_token_s is not None],
        EACH: [outcome.per_token_s for outcome in outcomes if outcome.per_token_s is not None],
        WHOLE: [outcome.total_s for outcome in outcomes if outcome.total_s is not None],
    }


def known_percentile(values: Sequence[float], share: float) -> float | None:
    """Return the percentile; None: of so few values that none, or all, lie beyond it."""
    return percentile(values, share) if len(values) * (1.0 - share) > 1.0 - 1e-9 else None


def figure_of(what: str, share: float) -> str:
    """Return the name of a percentile among the errors of a check."""
    return f"{what}, {100 * share:.0f} %"


def _compared(measured: Mapping[str, Sequence[float]], forecast: Mapping[str, Sequence[float]]) -> list[Compared]:
    rows = []
    for what, values in measured.items():
        for share in SHARES:
            was, now = known_percentile(values, share), known_percentile(forecast[what], share)
            if was is not None and now is not None:
                rows.append(Compared(what, share, was, now))
    return rows
