"""Arms are dealt by key: evenly, stably as the canary grows, and anew for each rollout."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prolepsis.control.rollout.live import arm_of

KEYS = [f"request-{i}" for i in range(20_000)]


@given(st.text("ab-1é"), st.text("r2"), st.floats(0.0, 0.5), st.floats(0.0, 0.4))
def test_requests_on_the_canary_stay_there_as_it_grows(key: str, rollout: str, share: float, more: float) -> None:
    small, large = arm_of(key, rollout, share), arm_of(key, rollout, share + more)
    assert small != "canary" or large == "canary"
    assert (small == "holdout") == (large == "holdout")


@pytest.mark.parametrize(("canary", "holdout"), [(0.01, 0.05), (0.25, 0.05), (0.95, 0.05), (0.5, 0.5), (0.0, 0.0)])
def test_arms_have_their_shares(canary: float, holdout: float) -> None:
    arms = [arm_of(key, "r", canary, holdout) for key in KEYS]
    for arm, share in (("canary", canary), ("holdout", holdout)):
        deviation = (share * (1 - share) / len(KEYS)) ** 0.5
        assert abs(arms.count(arm) / len(KEYS) - share) <= 4 * deviation  # type: ignore[arg-type]


def test_another_rollout_assigns_arms_independently() -> None:
    first, second = ({k for k in KEYS if arm_of(k, r, 0.2) == "canary"} for r in ("a", "b"))
    assert abs(len(first & second) / len(KEYS) - 0.04) < 0.006


def test_an_arm_is_the_same_on_every_machine() -> None:
    assert [arm_of(f"k{i}", "r", 0.5, 0.25) for i in range(8)] == EXPECTED


def test_shares_are_together_at_most_one() -> None:
    with pytest.raises(AssertionError, match="together"):
        arm_of("k", "r", 0.96, 0.05)


EXPECTED = ["holdout", "canary", "holdout", "unassigned", "canary", "canary", "holdout", "unassigned"]
