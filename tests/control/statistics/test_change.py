"""Bets that the mean of a series fell, or rose: what they pay, and what a stored watch continues with."""

import math

from prolepsis.control.statistics.change import LEARN, NUM_SIZES, POINTS, MeanState, MeanWatch, bets

HISTOGRAM = (40, 0, 0, 60, 0, 0, 50, 0, 0, 30, 0, 0, 20)  # none to four of four drafts right


def tilted(mean: float) -> list[float]:
    """Return the histogram's chances at the tilt that gives `mean`, found by a fine search of its own."""

    def chances(tilt: float) -> list[float]:
        weights = [(count + 0.5) * math.exp(tilt * i) for i, count in enumerate(HISTOGRAM)]
        return [weight / sum(weights) for weight in weights]

    def distance(tilt: float) -> float:
        return abs(sum(i * chance for i, chance in enumerate(chances(tilt))) / (POINTS - 1) - mean)

    return chances(min((0.0005 * i - 1.0 for i in range(4000)), key=distance))


def test_bets_pay_nothing_at_the_edge_of_what_is_tolerated_and_pay_beyond() -> None:
    found = bets(HISTOGRAM, lambda _: 0.05)
    total = sum(HISTOGRAM)
    mean = sum(i * count for i, count in enumerate(HISTOGRAM)) / (POINTS - 1) / total
    square = sum(i * i * count for i, count in enumerate(HISTOGRAM)) / (POINTS - 1) ** 2 / total
    tolerated = 0.05 + math.sqrt((square - mean * mean) / total)
    for factors, edge, beyond in (
        (found.lower, mean - tolerated, 0.5 * mean),
        (found.higher, mean + tolerated, 0.5 + 0.5 * mean),
    ):
        for row in factors:
            assert sum(map(math.prod, zip(row, tilted(edge), strict=True))) <= 1.001
        grown = [
            sum(chance * math.log(rate) for rate, chance in zip(row, tilted(beyond), strict=True)) for row in factors
        ]
        assert max(grown) > 0.05


def test_no_bet_is_made_where_no_mean_is() -> None:
    assert bets(HISTOGRAM, lambda _: 0.9) == bets(HISTOGRAM, lambda _: 1.0)
    assert not bets(HISTOGRAM, lambda _: 0.9).lower


def test_a_score_that_the_baseline_never_had_decides_nothing_alone() -> None:
    watch = MeanWatch(lambda _: 0.05)
    changes = [watch.see(0.5) for _ in range(1000)] + [watch.see(0.0) for _ in range(8)]
    assert changes == [None] * 1008
    assert any(watch.see(0.0) == "lower" for _ in range(40))


def test_a_state_of_another_format_is_learnt_again() -> None:
    old = MeanState(50.0, 100, (0.0,) * 12, (0.0,) * 12)
    assert MeanWatch(lambda _: 0.05, old).number == 0
    watch = MeanWatch(lambda _: 0.05)
    for _ in range(LEARN):
        watch.see(0.5)
    again = MeanWatch(lambda _: 0.05, MeanState.from_json(watch.state.to_json()))
    assert (again.baseline, again.state) == (0.5, watch.state)
    assert len(watch.state.lower) == NUM_SIZES
