from collections.abc import Callable

import httpx
import pytest

from prolepsis.api.tracing import parse_traceparent
from tests.api.fakes import FakeEngine

Connect = Callable[[FakeEngine], httpx.AsyncClient]
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.mark.parametrize(
    ("value", "flags"),
    [
        (f"00-{TRACE}-{SPAN}-01", "01"),
        (f" 00-{TRACE}-{SPAN}-00 ", "00"),
        (f"00-{TRACE}-{SPAN}-ff", "01"),
        (f"cc-{TRACE}-{SPAN}-01", "01"),
        (f"cc-{TRACE}-{SPAN}-01-what-comes-later", "01"),
    ],
)
def test_valid(value: str, flags: str) -> None:
    context = parse_traceparent(value)
    assert context is not None
    assert (context.trace_id, context.span_id, context.flags) == (TRACE, SPAN, flags)
    child = context.child()
    assert child.trace_id == TRACE
    assert child.span_id != SPAN
    assert parse_traceparent(child.header()) == child


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


async def test_a_trace_goes_out_with_a_span_of_our_own(client: Connect) -> None:
    http = client(FakeEngine())
    given = f"00-{TRACE}-{SPAN}-01"
    returned = (await http.get("/v1/models", headers={"traceparent": given})).headers["traceparent"]
    assert returned.startswith(f"00-{TRACE}-")
    assert returned.endswith("-01")
    assert returned != given
    for unfit in ("00-nonsense", f"ff-{TRACE}-{SPAN}-01"):
        assert "traceparent" not in (await http.get("/v1/models", headers={"traceparent": unfit})).headers
    assert "traceparent" not in (await http.get("/v1/models")).headers
