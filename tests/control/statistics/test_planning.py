"""Expected times against simulated ones."""

import math
import random
import statistics

import pytest

from prolepsis.control.statistics.guardrail import Guardrail, decide
from prolepsis.control.statistics.judge import Levels
from prolepsis.control.statistics.means import Better, Limit, MeanDifference
from prolepsis.control.statistics.planning import AssumedScores, expected_time_to_pass

LEVELS = Levels(num_stages=2)


def seconds_to_judgement(e: AssumedScores, share: float, seed: int, fail_alpha: float) -> float:
    """Return when a judgement comes at one request a second, looked at every ten."""
    rng = random.Random(seed)
    arms = e.guardrail.empty()
    for i in range(1, 30_000):
        on_canary = rng.random() < share
        score = float(rng.random() < (e.canary_mean if on_canary else e.control_mean))
        arms = e.guardrail.observe(arms, "canary" if on_canary else "control", score)
        if (
            i % 10 == 0
            and decide(e.guardrail, arms, share, fail_alpha=fail_alpha, pass_alpha=0.05)[0] != "inconclusive"
        ):
            return i
    return math.inf


def rate(canary: float, control: float, better: Better = "lower") -> AssumedScores:
    guardrail = Guardrail(name="g", metric="m", measure=MeanDifference(margin=0.05, baseline=control), better=better)
    mean = (canary + control) / 2
    return AssumedScores(
        guardrail=guardrail, control_mean=control, canary_mean=canary, deviation=math.sqrt(mean * (1 - mean))
    )


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_passing_takes_about_as_long_as_said(share: float) -> None:
    expectation = rate(0.1, 0.1)
    wait = expected_time_to_pass(expectation, share=share, requests_per_s=1.0, levels=LEVELS)
    median = statistics.median(seconds_to_judgement(expectation, share, seed, 0.025) for seed in range(15))
    assert wait.least_s < median < wait.most_s


def test_at_the_margin_no_judgement_is_to_be_expected() -> None:
    at_margin = rate(0.15, 0.10)
    assert expected_time_to_pass(at_margin, share=0.5, requests_per_s=1.0, levels=LEVELS).least_s == math.inf


def test_only_the_canary_counts_for_a_limit() -> None:
    guardrail = Guardrail(name="g", metric="m", measure=Limit(limit=0.05))
    expectation = AssumedScores(guardrail=guardrail, control_mean=0.0, canary_mean=0.0, deviation=0.0)
    one, ten = (
        expected_time_to_pass(expectation, share=share, requests_per_s=1.0, levels=LEVELS).most_s
        for share in (0.1, 1.0)
    )
    assert one == pytest.approx(10 * ten)
