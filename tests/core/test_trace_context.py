import pytest

from prolepsis.core.trace_context import first_span, new_trace_id, parse_traceparent

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.mark.parametrize(
    ("value", "sampled"),
    [
        (f"00-{TRACE}-{SPAN}-01", True),
        (f" 00-{TRACE}-{SPAN}-00 ", False),
        (f"00-{TRACE}-{SPAN}-ff", True),
        (f"cc-{TRACE}-{SPAN}-01", True),
        (f"cc-{TRACE}-{SPAN}-01-what-comes-later", True),
    ],
)
def test_valid(value: str, sampled: bool) -> None:
    context = parse_traceparent(value)
    assert context is not None
    assert (context.trace_id, context.span_id, context.sampled) == (TRACE, SPAN, sampled)
    child = context.child()
    assert child.trace_id == TRACE
    assert (child.parent_id, child.sampled) == (SPAN, sampled)
    assert child.span_id != SPAN
    sent = parse_traceparent(child.header())
    assert sent is not None
    assert (sent.trace_id, sent.span_id, sent.sampled) == (TRACE, child.span_id, sampled)


@pytest.mark.parametrize(
    "value",
    [
        "",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}",
        f"cc-{TRACE}-{SPAN}-01.more",
        f"00-{TRACE[:-1]}-{SPAN}-01",
    ],
)
def test_invalid(value: str) -> None:
    assert parse_traceparent(value) is None


def test_a_span_of_its_own_begins_a_trace() -> None:
    trace_id = new_trace_id()
    span = first_span(trace_id, sampled=False)
    assert parse_traceparent(span.header()) == span
    assert (span.trace_id, span.parent_id, span.header()[-3:]) == (trace_id, "", "-00")
    assert new_trace_id() != trace_id
