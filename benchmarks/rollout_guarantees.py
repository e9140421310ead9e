"""How often do rollouts decide wrongly, and how soon do they see damage? Thousands of simulated rollouts.

Usage: python -m benchmarks.rollout_guarantees [--rollouts 1000] [--seed 0] [--json OUT]

Each rollout has three canary stages with eight guardrails and is judged after every single request. A rollback of a
canary that is no worse than its margins is false; so is a promotion, out of any stage, of one that is exactly at a
margin. Rates come with Clopper-Pearson intervals (95 %). The arithmetic is that of `judge`, on whole streams at once; a
rollout in fifty is replayed through `judge` itself and has to say the same at the same request.
"""

import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from benchmarks.script import keep, options
from tests.simulation.guarantees import SHARES, clopper_pearson, simulate
from tests.simulation.rollout_traffic import REQUESTS_PER_S, Damage

AT_MARGIN = {
    "acceptance": Damage(acceptance=-0.05),
    "per_token_p50": Damage(times=1.10),
    "per_token_p95": Damage(tail_times=1.20),
    "cost": Damage(cost_times=1.10),
    "errors": Damage(errors=0.02),
    "everything": Damage(acceptance=-0.05, times=1.10, cost_times=1.10, errors=0.02),
}
DAMAGED = {"acceptance .6 -> .05": Damage(acceptance=-0.55), "latency +30 %": Damage(times=1.3)}


@dataclass(frozen=True, slots=True)
class Rate:
    """`low` and `high`: Clopper-Pearson; `promised`: whether the theory covers the case."""

    what: str
    hits: int
    of: int
    low: float
    high: float
    level: float
    promised: bool


def main() -> None:
    """Simulate, print, and return status 1 where a rate is shown to be above its level."""
    arguments = options(__doc__.splitlines()[0] if __doc__ else None, rollouts=1000, seed=0)
    began = time.perf_counter()
    rates = false_rates(arguments.rollouts, arguments.seed)
    detections = [
        detection(name, damage, share, arguments.rollouts // 10, arguments.seed)
        for name, damage in DAMAGED.items()
        for share in SHARES
    ]
    print(f"{time.perf_counter() - began:.0f} s")
    keep(arguments, seeds={"seed": arguments.seed}, rates=[asdict(rate) for rate in rates], detections=detections)
    sys.exit(any(rate.low > rate.level for rate in rates if rate.promised))


def false_rates(number: int, seed: int) -> list[Rate]:
    """Print and return the rates of wrong decisions."""
    rollouts = simulate(number, seed, Damage())
    rates = [_rate("rolled back, no difference", [r[-1].outcome == "fail" for r in rollouts], 0.05)]
    on = [len(r) == len(SHARES) and r[-1].outcome == "pass" for r in rollouts]
    rates.append(_rate("on, no difference", on, 1.0))
    for name, damage in AT_MARGIN.items():
        stages = [r[0] for r in simulate(number // 2, seed + 1, damage, shares=SHARES[:1])]
        rates.append(_rate(f"promoted, {name} at its margin", [s.outcome == "pass" for s in stages], 0.05))
        rates.append(_rate(f"rolled back, {name} at its margin", [s.outcome == "fail" for s in stages], 0.05))
    for name, requests_per_key, by_tenant in (("keys of 4 requests", 4, False), ("tenants as keys", 1, True)):
        rollouts = simulate(number // 4, seed + 2, Damage(), requests_per_key=requests_per_key, by_tenant=by_tenant)
        failed = [r[-1].outcome == "fail" for r in rollouts]
        rates.append(_rate(f"rolled back, no difference, {name}", failed, 0.05, promised=False))
        held = [r[-1].outcome == "inconclusive" for r in rollouts]
        rates.append(_rate(f"held, no difference, {name}", held, 1.0, promised=False))
    return rates


def detection(name: str, damage: Damage, share: float, number: int, seed: int) -> dict[str, object]:
    """Print and return how soon a stage fails (median and 90th percentile)."""
    stages = [r[0] for r in simulate(number, seed + 4, damage, shares=(share,))]
    failed = sorted(s.num_requests for s in stages if s.outcome == "fail")
    on_canary = sorted(s.num_canary for s in stages if s.outcome == "fail")
    median, late = statistics.median(failed), failed[int(0.9 * len(failed))]
    print(
        f"{name:20s} canary {share:4.0%}: {len(failed)} of {number} rolled back after {median:.0f} requests"
        f" (p90 {late}), {statistics.median(on_canary):.0f} of them on the canary;"
        f" {median / REQUESTS_PER_S:.0f} s (p90 {late / REQUESTS_PER_S:.0f} s) at {REQUESTS_PER_S:g} requests/s"
    )
    sys.stdout.flush()
    return {"damage": name, "share": share, "failed": len(failed), "of": number, "median": median, "p90": late}


def _rate(what: str, hits: Sequence[bool], level: float, *, promised: bool = True) -> Rate:
    low, high = clopper_pearson(sum(hits), len(hits))
    note = "" if promised else "  (not promised)"
    print(f"{what:45s} {sum(hits):5d} of {len(hits)}: {sum(hits) / len(hits):6.2%} ({low:.2%} to {high:.2%}){note}")
    sys.stdout.flush()
    return Rate(what, sum(hits), len(hits), low, high, level, promised)


if __name__ == "__main__":
    main()
