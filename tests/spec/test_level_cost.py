import random

import pytest

from prolepsis.spec.effort import LevelCost


def test_finds_the_line_under_noise() -> None:
    cost, rng = LevelCost(), random.Random(0)
    for _ in range(300):
        num_sequences, num_levels = rng.randint(1, 16), rng.randint(1, 6)
        cost.learn(num_sequences, num_levels, num_levels * (0.8 + 0.06 * num_sequences) * rng.uniform(0.9, 1.1))
    assert cost.fixed_ms == pytest.approx(0.8, rel=0.15)
    assert cost.sequence_ms == pytest.approx(0.06, rel=0.25)


def test_one_size_only_gives_its_cost_and_a_guess_for_the_others() -> None:
    cost = LevelCost()
    for _ in range(50):
        cost.learn(16, 3, 6.0)
    assert cost.fixed_ms + 16 * cost.sequence_ms == pytest.approx(2.0)
    assert 0.0 < cost.fixed_ms < 2.0


def test_a_slow_start_is_forgotten_at_once_and_a_hiccup_counts_little() -> None:
    cost = LevelCost()
    cost.learn(1, 3, 3000.0)
    cost.learn(1, 3, 3.0)
    assert cost.fixed_ms + cost.sequence_ms == pytest.approx(1.0)
    for _ in range(20):
        cost.learn(1, 3, 3.0)
    cost.learn(1, 3, 3000.0)
    assert cost.fixed_ms + cost.sequence_ms < 1.2


@pytest.mark.parametrize(("num_levels", "ms"), [(0, 5.0), (3, 0.0)])
def test_a_call_that_drafted_nothing_tells_nothing(num_levels: int, ms: float) -> None:
    cost = LevelCost()
    cost.learn(1, num_levels, ms)
    assert cost.fixed_ms == cost.sequence_ms == 0.0
