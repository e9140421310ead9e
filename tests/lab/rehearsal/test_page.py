"""The page of a forecast: complete in itself, with a band where seeds differ."""

import re
from dataclasses import replace

import pytest

from prolepsis.engine.drafting.cost import flat_cost
from prolepsis.lab.measure.arrivals import LatencyGoal
from prolepsis.lab.rehearsal.forecast import ClassGain, LoadForecast, forecasts
from prolepsis.lab.rehearsal.page import FIGURES, ForecastPage, class_advice
from prolepsis.lab.rehearsal.rehearsal import RehearsedServer
from prolepsis.lab.rehearsal.trace import Trace, TraceLine
from prolepsis.lab.virtual_engine.machine import LastCheck, Machine, ProposerCost

MACHINE = Machine(
    passes=flat_cost(),
    expected=flat_cost(),
    scatter=((0.9, 1.0, 1.3),) * 5,
    proposers={"suffix": ProposerCost(free=True)},
    measured_tokens=512,
    measured_sequences=64,
)
LINES = tuple(TraceLine(at=0.05 * i, prompt=8, output=9) for i in range(6))


def checked(error: float, num_requests: int = 20) -> Machine:
    return replace(MACHINE, checks={"auto": LastCheck(at=0.0, num_requests=num_requests, errors={END: error})})


END = "end to end, 50 %"


@pytest.fixture(scope="module")
def page() -> ForecastPage:
    loads = [("1x", Trace(lines=LINES)), ("<b>2x</b>", Trace(lines=LINES).scaled(rate=2.0))]
    setting, goal = RehearsedServer(machine=MACHINE), LatencyGoal()
    by_seed = [forecasts(loads, replace(setting, seed=seed), goal) for seed in (1, 2, 3)]
    return ForecastPage(
        by_seed=by_seed,
        trace="hour.jsonl",
        machine_name="machine.json",
        policy=None,
        requests=LINES,
        machine=MACHINE,
        goal=goal,
    )


def test_the_page_needs_nothing_else_and_escapes_names(page: ForecastPage) -> None:
    html = page.html()
    assert not re.search(r"<script|<link|src=|url\(|@import", html)
    assert "<b>2x</b>" not in html
    assert "&lt;b&gt;2x&lt;/b&gt;" in html
    for text in (
        "Forecast of hour.jsonl",
        "never checked",
        "lowest to highest of 3 seeds",
        "not known: 6 requests of 20",
    ):
        assert text in html
    assert html.count('class="band b1"') == len(FIGURES) - 3, "no percentile of one in twenty is known"


def test_what_is_not_measured_or_was_checked_is_said(page: ForecastPage) -> None:
    checks = {"auto": LastCheck(at=0.0, num_requests=9, errors={"a": 0.01, "b": -0.04, "c": 0.12})}
    html = replace(page, machine=replace(MACHINE, published="an H100, by a table", checks=checks)).html()
    assert "Not measured: an H100, by a table" in html
    assert "4.0 % in the median figure, at most 12 %" in html


def test_a_chart_has_the_lowest_and_the_highest_of_all_seeds(page: ForecastPage) -> None:
    whole = next(one for one in page.charts() if one.title == "end to end 50 %")
    plain, _ = whole.lines
    assert plain.band is not None
    lowest, highest = plain.band
    values = [1000.0 * (pairs[0][0].percentiles["end to end"]["p50"] or 0.0) for pairs in page.by_seed]
    assert (lowest[0], plain.values[0], highest[0]) == tuple(sorted(values))


def test_the_table_has_ranges(page: ForecastPage) -> None:
    heading, rows = page.table()
    assert [row[:2] for row in rows][::2] == [[rows[0][0], "off"], [rows[2][0], "off"]]
    assert all(len(row) == len(heading) for row in rows)
    assert "\u00a0– " in rows[0][heading.index("end to end 50 % ms")]


@pytest.mark.parametrize(
    ("plain_s", "error", "end"),
    [
        ((2.0, 2.0), 0.1, "at none of these loads"),
        ((2.0, 0.5), 0.1, "at 2x"),
        (
            (2.0, 1.05),
            0.1,
            "at none of these loads; at 2x not known: the error of the forecast (10 %) is larger than the",
        ),
        ((1.1, 1.0), 0.52, "not known: the error of the forecast (52 %) is larger than the effect (1.10x)"),
    ],
)
def test_where_speculation_stops_paying_is_said_where_it_is_known(
    page: ForecastPage, plain_s: tuple[float, float], error: float, end: str
) -> None:
    def taking(one: LoadForecast, load: str, seconds: float) -> LoadForecast:
        return replace(one, load=load, percentiles={"end to end": {"p50": seconds}})

    pairs = [
        (taking(plain, load, seconds), taking(own, load, 1.0))
        for load, seconds, (plain, own) in zip(("1x", "2x"), plain_s, page.by_seed[0], strict=True)
    ]
    twenty = replace(page, by_seed=[pairs], machine=checked(error), requests=LINES * 4)
    assert twenty.end.startswith(end)


FASTER, AS_FAST, SLOWER = (ClassGain(20, share, speedup) for share, speedup in ((1.0, 1.5), (0.25, 1.0), (0.0, 0.8)))
LARGER = "not known: the error of the forecast"


@pytest.mark.parametrize(
    ("gains", "machine", "advised"),
    [
        ([FASTER], checked(0.1), "on"),
        ([FASTER, SLOWER, FASTER], checked(-0.1), "on"),
        ([SLOWER], checked(0.1), "off"),
        ([AS_FAST], checked(0.0), f"{LARGER} (2 %) is larger than the effect (1.00x)"),
        ([AS_FAST, FASTER, SLOWER], checked(0.1), f"{LARGER} (10 %) is larger than the effect (0.80 to 1.50x)"),
        ([FASTER], checked(-0.52), f"{LARGER} (52 %) is larger than the effect (1.50x)"),
        ([FASTER, FASTER._replace(num_requests=2)], checked(0.1), "not known: 2 requests of 20"),
        ([FASTER], checked(0.1, 6), "not known: the forecast was checked with 6 requests of 20"),
        ([FASTER], MACHINE, "not known: no forecast of this machine with speculation was ever checked"),
    ],
)
def test_a_class_speculates_if_what_it_gains_in_most_forecasts_is_known(
    gains: list[ClassGain], machine: Machine, advised: str
) -> None:
    assert str(class_advice(gains, machine)) == advised


def test_what_was_not_measured_is_not_advised() -> None:
    assert str(class_advice([FASTER], checked(0.1), "passes of 9 tokens")) == "not known: passes of 9 tokens"


def test_a_row_shows_the_least_and_the_most(page: ForecastPage) -> None:
    (plain, own), *_ = page.by_seed[0]
    seeds = [[(plain, replace(own, classes={"a": gain}))] for gain in (FASTER, SLOWER, FASTER)]
    _, [row] = replace(page, by_seed=seeds, machine=checked(0.1)).class_table()
    assert row == ["a", "20", "0 – 100 %", "0.80 – 1.50", "on"]
