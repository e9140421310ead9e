"""Months of learning without shift promote next to nothing that is no better, and a better head is promoted."""

from collections import Counter

import pytest

from tests.simulation.guarantees import clopper_pearson
from tests.simulation.learning import GAIN, months, run, trial

MONTHS = [6, pytest.param(400, marks=pytest.mark.night)]


@pytest.mark.parametrize("number", MONTHS)
def test_without_shift_no_head_is_promoted_that_gains_nothing(number: int) -> None:
    runs = months(number, seed=1)
    wrong = sum(run.outcome == "promoted" and run.gain <= 0.0 for run in runs)
    assert clopper_pearson(wrong, len(runs))[0] <= 0.05
    assert Counter(run.outcome for run in runs)["rejected"] >= 0.85 * len(runs), "held-out text stops them already"


@pytest.mark.parametrize("number", MONTHS)
def test_the_canary_stops_what_held_out_text_overstates(number: int) -> None:
    runs = months(number, seed=2, offline_bias=0.3)
    tried = [run for run in runs if run.outcome != "rejected"]
    assert len(tried) >= 0.8 * len(runs)
    wrong = sum(run.outcome == "promoted" and run.gain <= GAIN for run in tried)
    assert clopper_pearson(wrong, len(tried))[0] <= 0.05
    assert any(run.outcome == "rolled back" for run in tried)


@pytest.mark.parametrize("number", [60, pytest.param(2000, marks=pytest.mark.night)])
def test_a_head_that_gains_just_too_little_is_promoted_once_in_20_times_at_most(number: int) -> None:
    promoted = sum(trial(GAIN, seed)[0] == "promoted" for seed in range(number))
    assert clopper_pearson(promoted, number)[0] <= 0.05
    assert promoted <= 0.05 * number + 3


def test_a_harmful_head_is_rolled_back_soon() -> None:
    trials = [trial(-0.2, seed, replay=seed == 0) for seed in range(20)]
    assert {outcome for outcome, _ in trials} == {"rolled back"}
    assert max(num_requests for _, num_requests in trials) < 1500


def test_a_better_head_is_promoted() -> None:
    runs = [run(0.15, seed) for seed in range(20)]
    promoted = sorted(run.num_requests for run in runs if run.outcome == "promoted")
    assert len(promoted) >= 18
    assert promoted[len(promoted) // 2] < 4000


def test_judge_itself_promotes_at_the_same_request() -> None:
    assert trial(0.15, 3, replay=True)[0] == "promoted"
