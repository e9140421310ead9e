"""False rollbacks and promotions in a few simulated rollouts, judged after every request."""

import pytest

from tests.simulation.guarantees import clopper_pearson, simulate
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
