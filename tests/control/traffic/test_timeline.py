from prolepsis.control.traffic.timeline import Timeline
from tests.clock import Clock


def test_spans_without_events_are_there_and_old_ones_leave() -> None:
    clock = Clock()
    line = Timeline(10.0, 4, clock)
    line.current().num_requests += 1
    clock.now = 1035.0
    line.current().num_requests += 2
    assert [(span.at, span.num_requests) for span in line.spans] == [(1000, 1), (1010, 0), (1020, 0), (1030, 2)]
    clock.now = 1041.0
    assert [span.at for span in line.spans] == [1010, 1020, 1030, 1040]


def test_a_long_pause_costs_one_span_and_a_clock_set_back_none() -> None:
    clock = Clock()
    line = Timeline(10.0, 4, clock)
    line.current()
    clock.now = 10.0**9
    assert line.spans[-1].at == 10**9
    clock.now = 5.0
    assert line.current().at == 10**9


def test_rates_of_an_empty_span_are_unknown() -> None:
    span = Timeline(10.0, 4, Clock()).current()
    assert (span.acceptance_rate, span.saved) == (None, None)
    span.num_draft_tokens, span.num_accepted, span.device_s, span.predicted_plain_s = 4, 3, 6.0, 8.0
    assert (span.acceptance_rate, span.saved) == (0.75, 0.25)
