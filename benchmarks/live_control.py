"""How soon does the live control show what speculation saves, and how often are its bounds wrong? Simulated edits.

Usage: python -m benchmarks.live_control [--runs 2000] [--requests 1000] [--seed 0] [--json OUT]

Requests of `tests.simulation.edit_costs` are compared as a server compares them, and looked at again and again. A run
misses if any look has bounds that leave out what is really saved. Rates come with Clopper-Pearson intervals (95 %).
"""

import sys
import time
from dataclasses import asdict, dataclass
from multiprocessing import Pool

from benchmarks.script import keep, options
from tests.simulation.edit_costs import EditTraffic
from tests.simulation.guarantees import clopper_pearson
from tests.simulation.live_control import Run, quantile, run

CASES = {
    "saves 25 %": EditTraffic(),
    "saves nothing": EditTraffic(saving=0.0),
    "costs 15 % more": EditTraffic(saving=-0.15),
    "saves 25 %, heavier tails": EditTraffic(noise=0.5, outliers=0.03),
    "saves 25 %, canary 20 %": EditTraffic(share=0.2),
}
MOST_MISSED = 0.06


def main() -> None:
    """Simulate, print, and return status 1 where bounds are shown to be wrong too often."""
    arguments = options(__doc__.splitlines()[0] if __doc__ else None, runs=2000, requests=1000, seed=0, processes=1)
    began = time.perf_counter()
    found = {}
    with Pool(arguments.processes) as pool:
        for name, traffic in CASES.items():
            seeds = range(arguments.seed, arguments.seed + arguments.runs)
            runs = pool.starmap(run, [(traffic, seed, arguments.requests) for seed in seeds], chunksize=20)
            found[name] = _report(name, runs)
    print(f"{time.perf_counter() - began:.0f} s")
    cases = {name: asdict(case) for name, case in found.items()}
    keep(arguments, seeds={"seed": arguments.seed}, cases=cases)
    sys.exit(any(case.missed_low > MOST_MISSED for case in found.values()))


@dataclass(frozen=True, slots=True)
class Case:
    """Share of runs that missed, with its interval, and requests until bounds exclude 0."""

    missed: float
    missed_low: float
    missed_high: float
    median: float
    p90: float


def _report(name: str, runs: list[Run]) -> Case:
    missed = sum(one.missed for one in runs)
    low, high = clopper_pearson(missed, len(runs))
    print(
        f"{name:28s} missed at any look {missed:4d} of {len(runs)}: {missed / len(runs):.2%} ({low:.2%} to {high:.2%});"
        f" bounds exclude 0 after {quantile(runs, 0.5):g} requests (p90 {quantile(runs, 0.9):g})"
    )
    sys.stdout.flush()
    return Case(missed / len(runs), low, high, quantile(runs, 0.5), quantile(runs, 0.9))


if __name__ == "__main__":
    main()
