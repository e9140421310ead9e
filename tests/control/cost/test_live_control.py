"""The live control answers soon on edits with heavy tails, and its bounds are right (`benchmarks/live_control.py`)."""

from tests.simulation.edit_costs import EditTraffic
from tests.simulation.live_control import quantile, run


def test_a_saving_of_a_quarter_shows_within_two_hundred_requests() -> None:
    runs = [run(EditTraffic(), seed, 200) for seed in range(15)]
    assert quantile(runs, 0.5) <= 200
    assert sum(one.missed for one in runs) <= 1


def test_bounds_are_right_where_nothing_is_saved_or_drafts_cost_more() -> None:
    for traffic in (EditTraffic(saving=0.0), EditTraffic(saving=-0.15), EditTraffic(noise=0.5, outliers=0.03)):
        runs = [run(traffic, seed, 200) for seed in range(8)]
        assert sum(one.missed for one in runs) <= 1
