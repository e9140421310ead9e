"""How often does the drift watch cry wolf, and how soon does it see a fall?

Usage: python -m benchmarks.drift_alarms [--hours 20] [--seeds 5] [--json OUT]

Simulated readings of an engine (`benchmarks.drift_traffic`) go through the board that the server uses: streams that do
not change, acceptance that falls by 0.15 for requests that begin from some time on, proposers whose estimates no longer
fit, and corruption that leaves 2 % of first tokens right from one moment to the next.
"""

import argparse
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.drift_traffic import Traffic
from prolepsis.cli.bench.provenance import provenance, versions
from prolepsis.safety.drift import DriftAlarm, DriftBoard, Kind

CHANGE_S = 1200.0
"""When what changes does."""


@dataclass(frozen=True, slots=True)
class Watched:
    """What the board said of one stream."""

    alarms: list[DriftAlarm]
    num_judged: int

    def delay_s(self, kind: Kind) -> float | None:
        """Return the seconds from the change to the first alarm of its kind."""
        return next((alarm.at - CHANGE_S for alarm in self.alarms if alarm.kind == kind and alarm.at > CHANGE_S), None)


def watch(traffic: Traffic, seconds: float) -> Watched:
    """Return what the board says of `traffic`."""
    board, alarms, num_judged = DriftBoard(), list[DriftAlarm](), 0
    for now, reading in traffic.readings(seconds):
        alarms += board.observe([reading], lambda _: "1", now)
        num_judged = reading.num_judged
    return Watched(alarms, num_judged)


def steady(mean: float) -> Callable[[float], float]:
    return lambda _: mean


def falling(before: float, after: float) -> Callable[[float], float]:
    return lambda now: before if now < CHANGE_S else after


def _false(num_running: int, mean: float, hours: float, seeds: int) -> dict[str, object]:
    each = [watch(Traffic(seed, num_running, steady(mean)), 3600.0 * hours / seeds) for seed in range(seeds)]
    kinds = Counter(alarm.kind for one in each for alarm in one.alarms)
    judged = sum(one.num_judged for one in each)
    return {"num_running": num_running, "acceptance": mean, "hours": hours, "judged": judged, "alarms": dict(kinds)}


def _delays(num_running: int, mean: float, seeds: int) -> dict[str, object]:
    found: dict[str, list[float | None]] = {"drift": [], "divergence": [], "cliff": []}
    for seed in range(seeds):
        fall = Traffic(seed, num_running, falling(mean, mean - 0.15))
        found["drift"].append(watch(fall, CHANGE_S + 3600.0).delay_s("drift"))
        stale = Traffic(seed, num_running, falling(mean, mean - 0.3), said=mean)
        found["divergence"].append(watch(stale, CHANGE_S + 3600.0).delay_s("divergence"))
        broken = Traffic(seed, num_running, steady(mean), corrupted=lambda now: now >= CHANGE_S)
        found["cliff"].append(watch(broken, CHANGE_S + 120.0).delay_s("cliff"))
    return {"num_running": num_running, "acceptance": mean, **found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=float, default=20.0)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    cases = [(num_running, mean) for num_running in (1, 4, 16) for mean in (0.3, 0.5, 0.8)]
    result = {
        "false_alarms": [_false(*case, given.hours, given.seeds) for case in cases],
        "delays_s": [_delays(*case, given.seeds) for case in cases if case[1] > 0.4],
        "provenance": provenance({"first": 0, "number": given.seeds}, versions(["river"])),
    }
    text = json.dumps(result, indent=2)
    print(text)
    if given.json:
        given.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
