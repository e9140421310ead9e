"""How soon does a pilot have its verdict, and how often is it wrong? Simulated edits, with heavy tails.

Usage: python -m benchmarks.live_control [--runs 2000] [--requests 1000] [--seed 0] [--json OUT]

Requests of `tests.simulation.edit_costs` are compared as a server compares them, and looked at again and again. A pilot
ends with its first verdict; a run misses if any look has bounds that leave out what is really saved. Rates come with
Clopper-Pearson intervals (95 %).
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
    "saves 5 %": EditTraffic(saving=0.05),
    "saves nothing": EditTraffic(saving=0.0),
    "costs 5 % more": EditTraffic(saving=-0.05),
    "costs 15 % more": EditTraffic(saving=-0.15),
    "saves 25 %, heavier tails": EditTraffic(noise=0.5, outliers=0.03),
    "saves 25 %, canary 20 %": EditTraffic(share=0.2),
}
MOST_MISSED, MOST_WRONG = 0.06, 0.025


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
    sys.exit(any(case.missed_low > MOST_MISSED or case.wrong_low > MOST_WRONG for case in found.values()))


@dataclass(frozen=True, slots=True)
class Case:
    """Shares of runs that missed and whose verdict was wrong, with lower bounds, and requests until the verdict."""

    missed: float
    missed_low: float
    wrong: float
    wrong_low: float
    decided: float
    median: float
    p90: float


def _report(name: str, runs: list[Run]) -> Case:
    shares = []
    for what, number in (("wrong", sum(one.wrong for one in runs)), ("missed", sum(one.missed for one in runs))):
        low, high = clopper_pearson(number, len(runs))
        shares.append((number / len(runs), low, f"{what} {number / len(runs):.2%} ({low:.2%} to {high:.2%})"))
    (wrong, wrong_low, wrongly), (missed, missed_low, missing) = shares
    decided, median, most = (
        sum(one.decided is not None for one in runs) / len(runs),
        *(quantile(runs, level) for level in (0.5, 0.9)),
    )
    after = f"verdict in {decided:.0%}, after {median:g} requests (p90 {most:g})"
    print(f"{name:28s} of {len(runs)} {wrongly}, {missing}; {after}", flush=True)
    return Case(missed, missed_low, wrong, wrong_low, decided, median, most)


if __name__ == "__main__":
    main()
