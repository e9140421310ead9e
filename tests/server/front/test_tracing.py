from collections.abc import Callable
from pathlib import Path

import httpx2

from prolepsis.core.config import ServerConfig
from prolepsis.core.telemetry.metrics import Metrics
from prolepsis.server.front.key_file import KeyFile, new_key
from prolepsis.server.front.keys import Keys
from prolepsis.server.front.tracing import behind_repeating_proxy
from tests.server.admission.conftest import bearer
from tests.server.application import build
from tests.server.fakes import ByteTokenizer, FakeEngine
from tests.world.site import Site

Connect = Callable[[FakeEngine], httpx2.AsyncClient]
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


async def test_a_proxy_that_repeats_the_id_of_a_request_finds_none_to_double() -> None:
    app = behind_repeating_proxy(build(ServerConfig(), FakeEngine(), ByteTokenizer(), Metrics()))
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://localhost") as http:
        assert "x-request-id" not in (await http.get("/v1/models", headers={"x-request-id": "abc-1"})).headers
        for unfit in ({"x-request-id": "a b"}, {}):
            made = (await http.get("/v1/models", headers=unfit)).headers["x-request-id"]
            assert made.startswith("req-"), "the log has this one"


async def test_requests_without_a_key_write_few_lines(
    tmp_path: Path, lines: Callable[[], list[dict[str, object]]]
) -> None:
    file = KeyFile(tmp_path / "keys.json")
    record, key = new_key("acme")
    file.add(record)
    async with Site(keys=Keys(file)).http as http:
        for _ in range(100):
            assert (await http.get("/v1/models")).status_code == 401
            assert (await http.get("/v1/models", headers=bearer(key))).status_code == 200
    statuses = [line["status"] for line in lines() if line["event"] == "http_request"]
    assert statuses.count(200) == 100
    assert 1 <= statuses.count(401) < 40
