"""How often does the drift watch cry wolf, and how soon does it see a fall?

Usage: python -m benchmarks.drift_alarms [--hours 20] [--seeds 5] [--json OUT]

Simulated readings of an engine (`tests.simulation.drift_traffic`) go through the board that the server uses: streams
that do not change, acceptance that falls by 0.15 for requests that begin after some time, proposers whose estimates no
longer fit, and corruption that leaves 2 % of first tokens right from one moment to the next.
"""

import argparse
import json
from collections import Counter
from pathlib import Path

from prolepsis.cli.bench.provenance import provenance, versions
from tests.simulation.drift_traffic import CHANGE_S, Traffic, falling, steady, watch


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
        stale = Traffic(seed, num_running, falling(mean, mean - 0.3), predicted=mean)
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
