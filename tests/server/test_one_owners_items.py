"""An item that fails in a loop over those of all owners is left out there and named, and the others go on.

The store refuses what belongs to the item, by a trigger, as a database refuses a value.
"""

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import httpx2
import pytest

from prolepsis.control.store.tenant_files import FileTable, TenantFile
from tests.control.store.databases import opened
from tests.server.batches.conftest import Serve, chat_line, ended, jsonl, made, results, serving
from tests.server.fakes import FakeEngine
from tests.waiting import wait_for

Refuse = Callable[[str], None]


@pytest.fixture
def serve(sqlite: str) -> Iterator[Serve]:
    with serving(sqlite) as start:
        yield start


@pytest.fixture
def refuse(sqlite: str) -> Refuse:
    """Let the store refuse something, which is said as a trigger's event."""

    def add(event: str) -> None:
        with closing(sqlite3.connect(sqlite.removeprefix("sqlite:///"))) as store:
            store.execute(f"CREATE TRIGGER bad BEFORE {event} BEGIN SELECT RAISE(ABORT, 'bad'); END")
            store.commit()

    return add


def skipped(url: str) -> list[tuple[str, str]]:
    return [(one["kind"], one["item"]) for one in httpx2.get(f"{url}/admin/health").json()["skipped"]]


def is_counted(url: str, kind: str) -> bool:
    assert httpx2.get(f"{url}/health/ready").status_code == 200
    return f'prolepsis_skipped_items{{kind="{kind}"}} 1.0' in httpx2.get(f"{url}/metrics").text


@pytest.mark.parametrize(
    "event",
    [
        "INSERT ON batch_lines WHEN NEW.custom_id = 'bad'",
        "UPDATE OF lease ON batch_lines WHEN NEW.custom_id = 'bad'",
        "UPDATE ON batches WHEN NEW.status = 'completed' AND NEW.document LIKE '%bad%'",
    ],
    ids=["read", "claim", "end"],
)
def test_batches_of_others_are_read_run_and_ended(serve: Serve, refuse: Refuse, event: str) -> None:
    server = serve()
    client = server.openai()
    refuse(event)
    bad = made(client, jsonl(chat_line("bad")), metadata={"a": "bad"})
    wait_for(lambda: ("batches", bad.id) in skipped(server.url))
    assert ended(client, made(client, jsonl(chat_line("good")))).status == "completed"
    wait_for(lambda: is_counted(server.url, "batches"))
    assert client.batches.retrieve(bad.id).status in ("validating", "in_progress")


def test_a_result_that_cannot_be_kept_fails_its_line_only(serve: Serve, refuse: Refuse) -> None:
    client = serve().openai()
    refuse("UPDATE ON batch_lines WHEN NEW.custom_id = 'bad' AND NEW.state = 'completed'")
    done = ended(client, made(client, jsonl(chat_line("bad"), *(chat_line(f"{i}") for i in range(4)))))
    assert done.request_counts is not None
    assert (done.request_counts.completed, done.request_counts.failed) == (4, 1)
    [fault] = results(client, done.error_file_id)
    assert (fault["custom_id"], fault["error"]["code"]) == ("bad", "server_error")


def test_background_responses_of_others_are_kept_and_ended(serve: Serve, refuse: Refuse) -> None:
    server = serve(FakeEngine(delay_s=0.01), response_retention_days=1)
    client = server.openai()
    refuse("UPDATE ON responses WHEN NEW.document LIKE '%bad%'")
    bad, good = (
        client.responses.create(model="tiny", input="Hi", background=True, metadata={"a": name})
        for name in ("bad", "good")
    )
    wait_for(lambda: client.responses.retrieve(good.id).status == "completed")
    wait_for(lambda: ("responses", bad.id) in skipped(server.url))  # its lease has lapsed, and it cannot be failed
    wait_for(lambda: is_counted(server.url, "responses"))


def test_a_corpus_that_cannot_be_used_keeps_no_others_from_the_engine(serve: Serve, sqlite: str) -> None:
    now = time.time()
    old = TenantFile(tenant="a", purpose="corpus", filename="a", num_bytes=5, created_at=now - 9, expires_at=now + 9999)
    serve()
    with closing(opened(sqlite)) as database:
        FileTable(database).put(old, [b"abc\xff\xff"])
    server = serve(engine := FakeEngine())
    form = {"data": {"purpose": "corpus"}, "files": {"file": ("b", b"valid")}}
    assert httpx2.post(f"{server.url}/v1/files", **form).status_code == 200  # type: ignore[arg-type]
    assert list(engine.corpora) == ["tenant:"]
    listed = {one["id"]: one for one in httpx2.get(f"{server.url}/admin/corpora").json()}
    assert "not UTF-8" in listed[old.file_id]["fault"]
    assert [one["fault"] for one in listed.values()].count(None) == 1
    wait_for(lambda: is_counted(server.url, "corpora"))
    httpx2.delete(f"{server.url}/admin/corpora/{old.file_id}").raise_for_status()
    wait_for(lambda: skipped(server.url) == [])


def test_a_corpus_that_is_refused_was_never_kept(serve: Serve, refuse: Refuse) -> None:
    server = serve()
    refuse("INSERT ON files")
    form = {"data": {"purpose": "corpus"}, "files": {"file": ("b", b"abc\xff")}}
    reply = httpx2.post(f"{server.url}/v1/files", **form)  # type: ignore[arg-type]
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "invalid_text")
