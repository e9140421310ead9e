from collections.abc import Callable

import httpx

from tests.api.fakes import FakeEngine

Connect = Callable[[FakeEngine], httpx.AsyncClient]
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


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
