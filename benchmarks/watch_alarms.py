"""After a rollout is on: how often does its moving window raise a false alarm, and how soon does it see damage?

Usage: python -m benchmarks.watch_alarms [--rules 100] [--days 30] [--repeats 10] [--json OUT]

Each rule has eight guardrails, a holdout of 5 % and a request a second; traffic drifts as in `rollout_guarantees`.
False alarms: rules that would be rolled back within the days though nothing is worse (Clopper-Pearson interval, 95 %).
Damage comes after an hour of good service and is judged by the code that serves; shown are median, minimum and maximum
of the seconds to the alarm, and how often none came within four hours.
"""

import statistics

from benchmarks.script import keep, options
from tests.simulation.guarantees import clopper_pearson
from tests.simulation.rollout_traffic import Damage
from tests.simulation.watching import alarms, peak_evidence, seconds_to_alarm

DAMAGED = {
    "acceptance .6 to .05": Damage(acceptance=-0.55),
    "acceptance .6 to .2": Damage(acceptance=-0.4),
    "errors 1 % to 31 %": Damage(errors=0.3),
    "times +50 %": Damage(times=1.5),
    "cost +50 %": Damage(cost_times=1.5),
}


def main() -> None:
    given = options(__doc__, rules=100, days=30, repeats=10)
    peaks = [peak_evidence(seed, given.days) for seed in range(given.rules)]
    false = alarms(peaks)
    low, high = clopper_pearson(false, given.rules)
    print(f"false alarms in {given.days} days: {false} of {given.rules} rules ({low:.2%} to {high:.2%})", flush=True)
    delays = {}
    for name, damage in DAMAGED.items():
        delays[name] = found = [seconds_to_alarm(1000 + seed, damage) for seed in range(given.repeats)]
        seen = [delay for delay in found if delay is not None]
        shown = f"{statistics.median(seen):.0f} s ({min(seen)} to {max(seen)})" if seen else "none"
        print(f"{name}: {shown}, {len(found) - len(seen)} of {len(found)} not seen", flush=True)
    keep(given, seeds={"first": 0}, peaks=peaks, false_alarms=false, delays_s=delays)


if __name__ == "__main__":
    main()
