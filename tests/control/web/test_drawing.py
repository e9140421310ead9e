"""Figures: lines have gaps where there are no values, and intervals keep their order on the scale."""

from prolepsis.control.web.drawing import WIDTH, Chart, Line, Mark, interval, path_of


def test_a_line_has_a_gap_where_there_is_no_value() -> None:
    assert path_of([0.0, 1.0, None, 0.5], 0.0, 1.0) == "M0.0 120.0 h1 L200.0 0.0 M600.0 60.0 h1"


def test_a_chart_says_in_words_what_it_draws() -> None:
    chart = Chart(
        title="Load", unit="requests", at=[0.0, 15.0], lines=[Line("running", [1.0, 2.0]), Line("x", [None] * 2)]
    )
    assert chart.span == (0.0, 2.0)
    assert chart.summary == "Load: running is 2 now, x has no values yet"
    assert chart.scale == "0 to 2"
    assert not chart.is_empty
    assert Chart(title="Load", unit="", at=[], lines=[Line("x", [])]).is_empty


def test_savings_below_zero_are_on_the_scale() -> None:
    assert Chart(title="Saved", unit="%", at=[0.0], lines=[Line("saved", [-20.0])], top=50.0).span == (-20.0, 50.0)


def test_an_interval_keeps_its_order() -> None:
    one = interval(estimate=0.6, lower=0.5, upper=0.7, allowed=0.3)
    assert one.zero is not None
    assert 0.0 < one.zero < one.allowed < one.lower < one.estimate < one.upper < 100.0
    same = interval(0.0, 0.0, 0.0, 0.0)
    assert same.estimate == 50.0


def test_a_change_is_marked_at_its_time_and_one_behind_the_lines_at_their_end() -> None:
    marks = [Mark(at, "head.swapped", "draft_head", "/console/audit/1") for at in (10.0, 40.0)]
    chart = Chart(title="A", unit="%", at=[0.0, 20.0], lines=[Line("x", [1.0, 2.0])], marks=marks)
    assert chart.places() == [WIDTH / 2, WIDTH]
    assert chart.summary.endswith("; 2 marked changes, listed below")


def test_a_band_goes_along_the_highest_values_and_back_along_the_lowest() -> None:
    lines = [Line("a", [1.0, 2.0], ([0.0, 1.0], [2.0, 4.0])), Line("b", [1.0, 1.0])]
    chart = Chart(title="t", unit="ms", at=(), lines=lines)
    assert chart.span == (0.0, 4.0), "the scale shows all of the band"
    assert chart.bands() == ["M0.0 60.0 L600.0 0.0 L600.0 90.0 L0.0 120.0 Z", ""]


def test_a_scale_of_nothing_but_zeros_ends_at_one() -> None:
    """People read `Scale 0 to 0.000000001` on a server that had no request so far."""
    chart = Chart(title="Output", unit="tokens/s", at=[0.0, 15.0], lines=[Line("tokens", [0.0, 0.0])])
    assert chart.scale == "0 to 1"
    assert chart.paths() == ["M0.0 120.0 h1 L600.0 120.0"]
