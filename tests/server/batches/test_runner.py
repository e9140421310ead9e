"""How batches run: behind all others, over servers, with the rights of their key, within their time."""

import time
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import openai
import pytest
from sqlalchemy import update

from prolepsis.control.store.tables import batches
from prolepsis.core.requests import BACKGROUND
from prolepsis.server.front.key_file import KeyFile, KeyRecord, new_key
from prolepsis.server.front.keys import Keys
from tests.control.store.databases import opened
from tests.server.batches.conftest import Serve, chat_line, ended, jsonl, made, results, serving
from tests.server.conftest import Served
from tests.server.fakes import FakeEngine
from tests.waiting import wait_for


def test_servers_share_a_batch_and_run_each_line_once(postgresql: str) -> None:
    engines = [FakeEngine(delay_s=0.002) for _ in range(2)]
    with serving(postgresql) as serve:
        first, second = (serve(engine, max_in_engine=4).openai() for engine in engines)
        batch = made(first, jsonl(*(chat_line(f"{i}") for i in range(120))))
        done = ended(second, batch)
        assert done.status == "completed"
        assert [one["custom_id"] for one in results(second, done.output_file_id)] == [f"{i}" for i in range(120)]
        shares = [len(engine.requests) for engine in engines]
        assert sum(shares) == 120
        assert min(shares) > 10


def test_an_interactive_request_comes_before_the_lines_that_wait(serve: Serve) -> None:
    engine = FakeEngine(delay_s=0.02)
    server = serve(engine, max_in_engine=2)
    client = server.openai()
    batch = made(client, jsonl(*(chat_line(f"{i}") for i in range(12))))
    wait_for(lambda: engine.requests)
    num_before = len(engine.requests)
    client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "now"}])
    late = [request.priority for request in engine.requests[num_before:]]
    assert 0 in late[:2] or 1 in late[:2]
    assert ended(client, batch).status == "completed"
    assert [request.priority for request in engine.requests].count(BACKGROUND) == 12
    assert {request.traffic_class for request in engine.requests} == {
        "chat-completions/background/free/short",
        "chat-completions/standard/free/short",
    }


def test_lines_have_a_limit_of_their_own_and_wait_for_it(serve: Serve) -> None:
    """A tenant's batch takes nothing of what it may ask for itself; a line that is over its limit is no failure."""
    limits = {"tenant": 4, "tier:background": 6000}
    client = serve(requests_per_minute=limits).openai()
    done = ended(client, made(client, jsonl(*(chat_line(f"{i}") for i in range(20)))))  # two requests by HTTP
    assert done.request_counts is not None
    assert done.request_counts.completed == 20
    client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "now"}])


def test_a_line_over_its_limit_waits(serve: Serve) -> None:
    client = serve(requests_per_minute={"tier:background": 2}).openai()
    batch = made(client, jsonl(*(chat_line(f"{i}") for i in range(4))))
    wait_for(lambda: client.batches.retrieve(batch.id).request_counts.completed == 2)  # type: ignore[union-attr]
    found = client.batches.retrieve(batch.id)
    assert found.status == "in_progress"
    assert found.request_counts is not None
    assert found.request_counts.failed == 0


def test_a_batch_whose_time_is_over_keeps_what_has_run(sqlite: str) -> None:
    engine = FakeEngine()
    with serving(sqlite) as serve, closing(opened(sqlite)) as database:
        client = serve(engine, max_in_engine=2).openai()
        engine.delay_s = 0.05
        batch = made(client, jsonl(*(chat_line(f"{i}") for i in range(30))))
        wait_for(lambda: client.batches.retrieve(batch.id).request_counts.completed >= 2)  # type: ignore[union-attr]
        with database.write() as connection:
            connection.execute(update(batches).values(expires_at=time.time()))
        done = ended(client, batch)
        assert (done.status, done.expired_at is None) == ("expired", False)
        ran, faults = results(client, done.output_file_id), results(client, done.error_file_id)
        assert len(ran) >= 2
        assert {fault["error"]["code"] for fault in faults} == {"batch_expired"}
        assert sorted(int(one["custom_id"]) for one in ran + faults) == list(range(30))


def add_keys(keys: KeyFile, *tenants: str) -> list[tuple[str, str]]:
    """Add a key of each tenant; return their ids and values."""
    made_keys = [new_key(tenant, roles=("client",), tier="standard", models=()) for tenant in tenants]
    for record, _ in made_keys:
        keys.add(record)
    return [(record.id, key) for record, key in made_keys]


def client_of(server: Served, key: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0)


LOSSES = [
    (lambda record: None, "invalid_api_key"),
    (lambda record: record.model_copy(update={"roles": ("viewer",)}), "insufficient_permissions"),
    (lambda record: record.model_copy(update={"tenant": "else"}), "invalid_api_key"),
    (lambda record: record.model_copy(update={"expires": datetime(2020, 1, 1, tzinfo=UTC)}), "expired_api_key"),
]


@pytest.mark.parametrize(("loss", "code"), LOSSES)
def test_lines_of_a_key_that_may_no_longer_do_not_run(
    serve: Serve, tmp_path: Path, loss: Callable[[KeyRecord], KeyRecord | None], code: str
) -> None:
    keys, engine = KeyFile(tmp_path / "keys.json"), FakeEngine(delay_s=0.05)
    (key_id, key), (_, other) = add_keys(keys, "acme", "acme")
    server = serve(engine, Keys(keys), max_in_engine=2)
    with client_of(server, key) as first, client_of(server, other) as second:
        batch = made(first, jsonl(*(chat_line(f"{i}") for i in range(12))))
        wait_for(lambda: engine.requests)
        [record] = [one for one in keys.read() if one.id == key_id]
        keys.remove(key_id)
        if (changed := loss(record)) is not None:
            keys.add(changed)
        done = ended(second, batch)
        assert done.status == "completed"
        faults = results(second, done.error_file_id)
        assert {fault["error"]["code"] for fault in faults} == {code}
        assert len(faults) + len(engine.requests) == 12


def test_files_and_batches_of_tenants_take_turns(serve: Serve, tmp_path: Path) -> None:
    """A second tenant's lines do not wait for the end of the first one's batch."""
    keys, engine = KeyFile(tmp_path / "keys.json"), FakeEngine(delay_s=0.02)
    (_, key), (_, other) = add_keys(keys, "acme", "other")
    server = serve(engine, Keys(keys), max_in_engine=4)
    with client_of(server, key) as first, client_of(server, other) as second:
        long = made(first, jsonl(*(chat_line(f"{i}") for i in range(60))))
        wait_for(lambda: engine.requests)
        short = made(second, jsonl(*(chat_line(f"{i}") for i in range(4))))
        assert ended(second, short).status == "completed"
        assert first.batches.retrieve(long.id).status == "in_progress"
