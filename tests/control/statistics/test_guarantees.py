"""False rollbacks and promotions in a few simulated rollouts, judged after every request."""

from collections import Counter

import numpy as np
import pytest

from prolepsis.control.statistics.guardrail import Guardrail
from prolepsis.control.statistics.means import Better, Ratio
from tests.simulation.guarantees import Stream, clopper_pearson, simulate
from tests.simulation.rollout_traffic import Damage

NUMBER = 12


def test_no_rollout_without_damage_is_rolled_back_and_the_judge_agrees_with_the_simulation() -> None:
    assert [r[-1].outcome for r in simulate(NUMBER, 90, Damage(), shares=(0.5,))].count("fail") <= 1


def test_everything_at_its_margin_is_not_promoted_and_not_rolled_back() -> None:
    damage = Damage(acceptance=-0.05, times=1.10, cost_times=1.10, errors=0.02)
    outcomes = [r[-1].outcome for r in simulate(NUMBER, 91, damage, shares=(0.5,))]
    assert outcomes.count("pass") <= 1
    assert outcomes.count("fail") <= 1


def test_a_damaged_draft_is_rolled_back_within_hundreds_of_requests() -> None:
    stages = [r[-1] for r in simulate(NUMBER, 92, Damage(acceptance=-0.55), shares=(0.2,))]
    assert {s.outcome for s in stages} == {"fail"}
    assert max(s.num_requests for s in stages) < 500


@pytest.mark.parametrize(
    ("hits", "number", "expected"),
    [(0, 10, (0.0, 0.3085)), (10, 10, (0.6915, 1.0)), (5, 10, (0.1871, 0.8129)), (3, 100, (0.0062, 0.0852))],
)
def test_clopper_pearson_is_as_tabulated(hits: int, number: int, expected: tuple[float, float]) -> None:
    assert clopper_pearson(hits, number) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(("better", "factor"), [("higher", 1.1), ("lower", 0.9)])
def test_a_gain_passes_where_it_surely_is_there_and_fails_where_it_surely_is_not(better: Better, factor: float) -> None:
    gains = Guardrail(name="gain", metric="amount", better=better, measure=Ratio(margin=-0.1)).referring_to(2.0)

    def outcomes(ratio: float, seed: int) -> Counter[str]:
        """Judge canaries of so many times the control's mean after each of 3,000 requests; the first outcome counts."""
        seen: Counter[str] = Counter()
        for i in range(60):
            draw = np.random.default_rng([seed, i])
            canary = draw.random(3000) < 0.5
            fails, passes = Stream(gains, 0.5).extend(canary, draw.uniform(1.2, 2.8, 3000) * np.where(canary, ratio, 1))
            decided = fails | passes
            seen["inconclusive" if not decided.any() else "fail" if fails[decided.argmax()] else "pass"] += 1
        return seen

    at_it = outcomes(factor, 93)
    assert at_it["pass"] <= 3, "its level is one in twenty"
    assert at_it["fail"] <= 1
    assert outcomes(1.0, 94)["fail"] == 60, "no gain is harm"
    assert outcomes(factor**3, 95)["pass"] == 60
