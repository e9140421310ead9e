"""How often does learning promote a head that is no better, and how often a better one? Simulated months of runs.

Usage: python -m benchmarks.learning_guarantees [--months 500] [--seed 1] [--json OUT]

A month has four runs of candidates that are as good as the shipped head, but for noise between seeds. Each is judged on
held-out documents and then, request by request, in its canary. Rates come with Clopper-Pearson intervals (95 %).
Power: candidates of a known gain, through both, and through the canary alone.
"""

import statistics
import sys
from collections import Counter
from collections.abc import Sequence

from benchmarks.script import keep, options
from tests.simulation.guarantees import clopper_pearson
from tests.simulation.learning import GAIN, months, run, trial

_GAINS = (-0.2, -0.05, 0.0, GAIN, 0.05, 0.08, 0.1, 0.15, 0.2)
_BIASES = {"no shift": 0.0, "no shift, held-out text overstates by 30 %": 0.3}


def main() -> None:
    """Simulate, print, and return status 1 where false promotions are shown to be above 1 in 20."""
    args = options(__doc__, months=500, seed=1)
    rates = [_false_promotions(name, bias, args.months, args.seed) for name, bias in _BIASES.items()]
    power = [_power(gain, args.months) for gain in _GAINS]
    keep(args, seeds={"seed": args.seed}, false_promotions=rates, power=power)
    sys.exit(any(rate["low"] > 0.05 for rate in rates))


def _false_promotions(name: str, bias: float, number: int, seed: int) -> dict[str, float]:
    runs = months(number, seed, offline_bias=bias)
    outcomes = Counter(found.outcome for found in runs)
    wrong = sum(found.outcome == "promoted" and found.gain <= 0.0 for found in runs)
    low, high = clopper_pearson(wrong, len(runs))
    print(f"{name}: {dict(outcomes)} of {len(runs)} runs; {wrong} promoted that gain nothing ({low:.2%} to {high:.2%})")
    return {
        **dict[str, float](outcomes.items()),
        "runs": len(runs),
        "promoted that gain nothing": wrong,
        "low": low,
        "high": high,
    }


def _power(gain: float, number: int) -> dict[str, float]:
    runs, trials = [run(gain, seed) for seed in range(number)], [trial(gain, seed) for seed in range(number)]
    whole, canary = _promoted([found.outcome for found in runs]), _promoted([outcome for outcome, _ in trials])
    requests = statistics.median(num_requests for _, num_requests in trials)
    print(f"gain {gain:+.0%}: promoted {whole:.1%}, by the canary alone {canary:.1%} (median {requests:.0f} requests)")
    return {"gain": gain, "promoted": whole, "by the canary alone": canary, "requests": requests}


def _promoted(outcomes: Sequence[str]) -> float:
    return outcomes.count("promoted") / len(outcomes)


if __name__ == "__main__":
    main()
