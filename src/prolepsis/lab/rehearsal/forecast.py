"""Forecasts over several loads: what a policy would bring against plain decoding, and where it stops paying."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from prolepsis.control.statistics.percentile import percentile
from prolepsis.core.facts import traffic_class_of
from prolepsis.lab.measure.arrivals import LatencyGoal
from prolepsis.lab.rehearsal.check import SHARES, known_percentile, times
from prolepsis.lab.rehearsal.control import ControlChange
from prolepsis.lab.rehearsal.rehearsal import Rehearsal, RehearsedServer, rehearse
from prolepsis.lab.rehearsal.trace import Trace

_FASTER = 0.99
"""Share of the plain time at which a request counts as faster."""


class ClassGain(NamedTuple):
    """What speculation brings to the requests of one traffic class."""

    num_requests: int
    share: float  # of these requests, those that it makes faster
    speedup: float  # median over them: end to end, the plain time over the time with speculation


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadForecast:
    """The forecast of one load, mode and seed."""

    mode: str
    load: str
    seed: int
    per_second: float  # requests that arrive in a second
    num_at_once: float  # requests in the system, on average (Little's law)
    num_refused: int
    tokens_per_second: float
    tokens_a_pass: float  # of a sequence
    device_s_per_token: float  # that requests use; the rest of the time the device is idle
    goodput: float  # requests a second that keep the goal
    percentiles: Mapping[str, Mapping[str, float | None]]
    """Seconds, by time, in the order of `times`, and percentile; None: it had too few requests."""
    extrapolated: float
    """Share of drafts that are not known where they were made, or as far as they would have gone."""
    classes: Mapping[str, ClassGain] = field(default_factory=dict)
    """Against plain decoding of the same load, by traffic class."""
    changes: Sequence[ControlChange] = ()  # what changed
    not_measured: str | None = None  # as in `Rehearsal`


Pair = tuple[LoadForecast, LoadForecast]


def forecasts(loads: Sequence[tuple[str, Trace]], setting: RehearsedServer, goal: LatencyGoal) -> list[Pair]:
    """Return what plain decoding, and the setting, would do with each trace; its name is of a load, such as "2x"."""
    pairs, off = [], replace(setting, mode="off", policy=None)  # what a policy pins is to be compared too
    for load in loads:
        plain, own = (rehearse(load[1], server) for server in (off, setting))
        speculating = replace(_forecast(load, own, setting, goal), classes=_gains(plain, own))
        pairs.append((_forecast(load, plain, off, goal), speculating))
    return pairs


def _gains(plain: Rehearsal, own: Rehearsal) -> Mapping[str, ClassGain]:
    """Compare each request with itself; one that was refused in either is left out."""
    speedups: dict[str, list[float]] = {}
    for before, after in zip(plain.outcomes, own.outcomes, strict=True):
        if before.total_s and after.total_s:
            speedups.setdefault(traffic_class_of(after.line.facts()), []).append(before.total_s / after.total_s)
    return {
        name: ClassGain(
            len(each), sum(_FASTER * gain >= 1.0 for gain in each) / len(each), percentile(each, 0.5) or 1.0
        )
        for name, each in speedups.items()
    }


def _forecast(
    load: tuple[str, Trace], rehearsal: Rehearsal, setting: RehearsedServer, goal: LatencyGoal
) -> LoadForecast:
    name, trace = load
    served = rehearsal.served
    kept = [outcome for outcome in served if outcome.keeps(goal)]
    seconds = max(rehearsal.seconds, 1e-9)
    drafts = [counts for counts in rehearsal.replayed.values() if counts]
    known = sum(counts.get("exact", 0) - counts.get("cut", 0) for counts in drafts)
    made = sum(counts.get("exact", 0) + counts.get("moved", 0) for counts in drafts)
    return LoadForecast(
        mode=setting.mode,
        load=name,
        seed=setting.seed,
        per_second=len(trace.lines) / (seconds if trace.at_once else trace.lines[-1].at or seconds),
        num_at_once=sum(outcome.total_s or 0.0 for outcome in served) / seconds,
        num_refused=sum(outcome.error is not None for outcome in rehearsal.outcomes),
        tokens_per_second=rehearsal.tokens_per_second,
        tokens_a_pass=rehearsal.tokens_a_pass,
        device_s_per_token=sum(outcome.stats.device.total for outcome in served) / max(1, rehearsal.num_tokens),
        goodput=len(kept) / seconds,
        percentiles={
            what: {f"p{round(100 * share)}": known_percentile(values, share) for share in SHARES}
            for what, values in times(served).items()
        },
        extrapolated=1.0 - known / made if made else 0.0,
        changes=rehearsal.changes,
        not_measured=rehearsal.not_measured,
    )
