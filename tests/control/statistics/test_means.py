"""Bets on two arms: fair where they must be, never below zero, monotone in what they are asked."""

import math
import random
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prolepsis.control.statistics.arms import ArmScores
from prolepsis.control.statistics.means import NUM_STAKES, Contrast

shares = st.floats(0.01, 0.95)
centres = st.floats(0.0, 1.0)
KINDS = ((0.0, 1.0), (0.05, 1.0), (-0.05, 1.0), (0.0, 1.1), (0.0, 0.9), (0.02, 0.0))


def one(arm: str, score: float, num_points: int = 2) -> ArmScores:
    return ArmScores.empty(num_points).observe("canary" if arm == "canary" else "control", score)


@given(shares, centres, st.sampled_from(KINDS), st.sampled_from([1, -1]), st.floats(0.0, 1.0))
def test_a_bet_is_fair_where_canary_and_control_differ_by_what_is_allowed(
    share: float, centre: float, kind: tuple[float, float], sign: int, control: float
) -> None:
    """Scores are zeros and ones with any probabilities on the boundary; the expectation is summed over everything."""
    shift, ratio = kind
    canary = ratio * control + shift
    if not 0.0 <= canary <= 1.0:
        return
    contrast = Contrast(shift, ratio=ratio, centre=centre, share=share)
    for stake in contrast.stakes(sign):
        expected = sum(
            (share if arm == "canary" else 1.0 - share)
            * (mean if score else 1.0 - mean)
            * math.exp(contrast.log_wealth(one(arm, score), stake))
            for (arm, mean), score in product((("canary", canary), ("control", control)), (0.0, 1.0))
        )
        assert expected == pytest.approx(1.0)


@given(shares, centres, st.sampled_from(KINDS), st.sampled_from([1, -1]), st.floats(0.0, 1.0))
def test_no_request_can_take_everything(
    share: float, centre: float, kind: tuple[float, float], sign: int, score: float
) -> None:
    contrast = Contrast(kind[0], ratio=kind[1], centre=centre, share=share)
    for stake, arm in product(contrast.stakes(sign), ("canary", "control")):
        assert contrast.log_wealth(one(arm, score, 9), stake) >= math.log(0.09)


def test_the_evidence_is_the_mean_of_the_wealths() -> None:
    contrast = Contrast(0.1, share=0.25)
    arms = one("canary", 1.0) + one("canary", 0.0) + one("control", 1.0)
    stakes = contrast.stakes(1)
    mean = sum(math.exp(contrast.log_wealth(arms, stake)) for stake in stakes) / NUM_STAKES
    assert contrast.log_evidence(arms, stakes) == pytest.approx(math.log(mean))


def test_wealth_by_hand() -> None:
    """share 1/4: the canary's bets count once, the control's a third; centre 1/2, shift 0.1, stake 0.6."""
    contrast = Contrast(0.1, share=0.25)
    arms = one("canary", 1.0) + one("control", 1.0) + one("control", 0.0)
    by_hand = math.log(1 + 0.6 * (1 - 0.1 - 0.5)) + math.log(1 - 0.2 * 0.5) + math.log(1 + 0.2 * 0.5)
    assert contrast.log_wealth(arms, 0.6) == pytest.approx(by_hand)


@pytest.mark.parametrize("sign", [1, -1])
def test_evidence_falls_as_more_is_allowed_and_rises_for_the_other_side(sign: int) -> None:
    rng = random.Random(3)
    arms = ArmScores.empty(9)
    for _ in range(60):
        arms = arms.observe("canary" if rng.random() < 0.4 else "control", rng.random())
    stakes = Contrast(0.0, share=0.4).stakes(sign)
    evidence = [Contrast(x / 20, share=0.4).log_evidence(arms, stakes) * sign for x in range(-20, 21)]
    assert evidence == sorted(evidence, reverse=True)
