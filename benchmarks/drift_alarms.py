"""How often does drift raise a false alarm, and how soon does it see damage? Simulated.

Usage: python -m benchmarks.drift_alarms [--days 30] [--streams 20] [--seeds 5] [--json OUT]

Requests have an acceptance of their own (beta, deviation .19 around .5). False alarms of the code that serves, of any
kind: streams of a request a second whose mean acceptance has a daily wave of .02, each from another time of day on,
four judged drafts a request, whose estimates are the request's own acceptance. How many judged drafts it takes to tell
a fall by half, by many streams at once. Delays: requests of 60 judged drafts, 40 a second, in 1, 4 or 16 places;
acceptance falls by .15; by .3 while the proposer's estimates stay (divergence); to 2 % (cliff).
"""

import json
import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.script import keep, options
from prolepsis.control.health.drift import DriftAlarm, DriftSettings, DriftStream
from prolepsis.core.stats import JudgedDraft, TrafficClassCounts
from prolepsis.engine.drafting.acceptance import FIRST_JUDGED
from tests.simulation.drift_traffic import (
    CHANGE_S,
    CONCENTRATION,
    KEY,
    Traffic,
    falling,
    falls_seen,
    steady,
    watch,
)


def _false(mean: float, streams: int, days: float) -> dict[str, object]:
    kinds: Counter[str] = Counter()
    with_alarm = 0
    for k in range(streams):
        stream = DriftStream(TrafficClassCounts(*KEY), "head@1", 0.0, DriftSettings())
        alarms = Counter(alarm.kind for alarm in _alarms(stream, mean, k / streams, int(86_400 * days), k))
        kinds += alarms
        with_alarm += bool(alarms)
        print(f"acceptance {mean}: {with_alarm} of {k + 1} streams with a false alarm {dict(kinds)}", flush=True)
    return {"acceptance": mean, "streams": streams, "days": days, "streams_with_alarm": with_alarm, "alarms": kinds}


def _alarms(stream: DriftStream, mean: float, phase: float, requests: int, seed: int) -> Iterator[DriftAlarm]:
    """Yield the alarms of a stream of a request a second; `phase`: where in a day it begins, in days."""
    rng = np.random.default_rng(seed)
    for first in range(0, requests, 86_400):
        now = np.arange(first, min(requests, first + 86_400))
        about = mean + 0.02 * np.sin(2.0 * math.pi * (now / 86_400.0 + phase))
        shares = rng.beta(CONCENTRATION * about, CONCENTRATION * (1.0 - about))
        right = rng.binomial(FIRST_JUDGED, shares)
        for second, share, number in zip(now.tolist(), shares.tolist(), right.tolist(), strict=True):
            yield from stream.see([JudgedDraft(i < number, share) for i in range(FIRST_JUDGED)], float(second))


def _fall_by_half(mean: float) -> dict[str, object]:
    alarms = falls_seen(mean, mean / 2.0, streams=100, requests=5000, change=3000, seed=2)
    first: dict[int, int] = {}
    for stream, request in alarms:
        first.setdefault(stream, request)
    judged = sorted(FIRST_JUDGED * (request - 2999) for request in first.values())
    shown = {name: judged[int(share * (len(judged) - 1))] for name, share in (("median", 0.5), ("p90", 0.9))}
    return {"acceptance": mean, "seen": len(judged), "of": 100, "judged": shown}


def _delays(num_running: int, mean: float, seeds: int) -> dict[str, object]:
    found: dict[str, list[float | None]] = {"drift": [], "divergence": [], "cliff": []}
    for seed in range(seeds):
        fall = Traffic(seed, num_running, falling(mean, mean - 0.15))
        found["drift"].append(watch(fall, CHANGE_S + 3600.0).delay_s("drift"))
        stale = Traffic(seed, num_running, falling(mean, mean - 0.3), predicted=mean)
        found["divergence"].append(watch(stale, CHANGE_S + 3600.0).delay_s("divergence"))
        broken = Traffic(seed, num_running, steady(mean), corrupted=lambda now: now >= CHANGE_S)
        found["cliff"].append(watch(broken, CHANGE_S + 120.0).delay_s("cliff"))
    return {"num_running": num_running, "acceptance": mean, **found}


def main() -> None:
    given = options(__doc__, days=30.0, streams=20, seeds=5)
    cases = [(num_running, mean) for num_running in (1, 4, 16) for mean in (0.3, 0.5, 0.8)]
    result: dict[str, Any] = {
        "fall_by_half": [_fall_by_half(mean) for mean in (0.3, 0.4, 0.5, 0.6, 0.8)],
        "false_alarms": [_false(mean, given.streams, given.days) for mean in (0.3, 0.5, 0.8)],
        "delays_s": [_delays(*case, given.seeds) for case in cases if case[1] > 0.4],
    }
    print(json.dumps(result, indent=2))
    keep(given, seeds={"first": 0, "number": given.seeds}, **result)


if __name__ == "__main__":
    main()
