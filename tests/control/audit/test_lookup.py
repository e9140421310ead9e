"""A request is found by every name that people hold: over HTTP, on the command line, in the log and in the store."""

import json
import time
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sqlalchemy import update
from structlog.testing import capture_logs
from typer.testing import CliRunner

from prolepsis.control.audit.log import forget_tenant
from prolepsis.control.audit.lookup import FoundRequest, find_request
from prolepsis.control.store import records
from prolepsis.control.store.store import Store
from prolepsis.control.store.tables import chain_links, request_records
from prolepsis.core.config import ServerConfig
from prolepsis.server.cli.main import app as commands
from tests.world.site import Site

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
HEADERS = {"x-request-id": "ticket-7;ann@example.org", "traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
ASKED = {"model": "tiny", "prompt": "Say hi", "max_tokens": 40}


@pytest.fixture
def http(store: Store) -> httpx2.AsyncClient:
    return Site(config=ServerConfig(audit_sample=1.0), store=store).http


async def test_every_name_finds_the_record_and_the_entry(
    store: Store, http: httpx2.AsyncClient, tmp_path: Path
) -> None:
    with capture_logs() as logs:
        reply = await http.post("/v1/completions", json=ASKED, headers=HEADERS)
        await http.post("/v1/completions", json=ASKED)
        assert store.writer.flush(20.0)
    answer = reply.json()
    [line, _] = [log for log in logs if log["event"] == "http_request"]
    assert (line["request_id"], line["answer_id"]) == (HEADERS["x-request-id"], answer["id"])
    [audited, _] = [log for log in logs if log["event"] == "request_audited"]
    assert (audited["answer_id"], audited["trace_id"]) == (answer["id"], TRACE)
    names = (HEADERS["x-request-id"], TRACE, answer["id"], str(audited["entry"]), audited["engine_request_id"])
    for name in names:
        found = (await http.get(f"/admin/requests/{name}")).json()
        [record] = found["records"]
        assert (record["answer_id"], record["http_request_id"]) == (answer["id"], HEADERS["x-request-id"])
        assert (record["trace_id"], record["seed"]) == (TRACE, answer["seed"])
        assert found["audit_entries"] == [audited["entry"]]
        assert (await http.get(f"/admin/audit/{name}")).json()["seq"] == audited["entry"]
        words = ["audit", "show", name, "--store", f"sqlite:///{tmp_path / 'store.sqlite'}", "--json"]
        done = CliRunner().invoke(commands, words)
        assert (done.exit_code, json.loads(done.stdout)["records"]) == (0, [record]), done.output
    missing = await http.get("/admin/requests/nobody")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "request_not_found")


@pytest.mark.parametrize("stream", [False, True])
async def test_the_names_of_a_retry_find_the_first_request(
    store: Store, http: httpx2.AsyncClient, stream: bool
) -> None:
    own = {"x-request-id": "retry-8", "traceparent": f"00-{'ab' * 16}-00f067aa0ba902b7-01"}
    body, key = {**ASKED, "stream": stream}, {"idempotency-key": "one"}
    with capture_logs() as logs:
        await http.post("/v1/completions", json=body, headers={**HEADERS, **key})
        again = await http.post("/v1/completions", json=body, headers={**own, **key})
        assert store.writer.flush(20.0)
    assert (again.headers["idempotency-replayed"], again.headers["x-request-id"]) == ("true", "retry-8")
    first, retry = [log for log in logs if log["event"] == "http_request"]
    assert (first["request_id"], retry["request_id"]) == (HEADERS["x-request-id"], "retry-8")
    assert retry["answer_id"] == first["answer_id"]
    [expected] = [(await http.get(f"/admin/requests/{first['answer_id']}")).json()]
    assert len(expected["records"]) == len(expected["audit_entries"]) == 1
    for name in ("retry-8", "ab" * 16):
        assert (await http.get(f"/admin/requests/{name}")).json() == expected


async def test_the_names_of_retries_go_when_records_are_pruned(store: Store, http: httpx2.AsyncClient) -> None:
    for name in ("first", "retry-8"):
        headers = {"idempotency-key": "one", "x-request-id": name}
        await http.post("/v1/completions", json=ASKED, headers=headers)
    assert store.writer.flush(20.0)
    records.prune(store.database, time.time() + 1.0)
    with store.database.read() as connection:
        assert records.answers_of_retries(connection, ["retry-8"], 10) == set()


async def test_the_names_are_forgotten_with_the_tenant(store: Store, http: httpx2.AsyncClient) -> None:
    reply = await http.post("/v1/completions", json=ASKED, headers=HEADERS)
    assert store.writer.flush(20.0)
    with store.database.write() as connection:
        for table in (chain_links, request_records):
            connection.execute(update(table).values(tenant="acme"))
    forget_tenant(store.database, "acme", "ann")
    with store.database.read() as connection:
        for name in (HEADERS["x-request-id"], TRACE, reply.json()["id"]):
            assert find_request(connection, name) == FoundRequest([], [])


async def test_a_name_that_a_client_chose_is_not_in_the_log_of_audits(store: Store, http: httpx2.AsyncClient) -> None:
    await http.post("/v1/completions", json=ASKED, headers=HEADERS)
    assert store.writer.flush(20.0)
    shown: Any = (await http.get("/admin/audit/1")).json()
    assert "ann@example.org" not in json.dumps(shown)
    assert "[EMAIL]" in shown["details"]["after"]["http_request_id"]
