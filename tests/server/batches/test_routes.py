"""/v1/files and /v1/batches through OpenAI's client: shapes, states, faults by line, pages, tenants."""

from contextlib import closing
from pathlib import Path

import httpx2
import openai
import pytest

from prolepsis.control.store.batches import BatchTable, StoredBatch
from prolepsis.server.batches.routes import MOST_RUNNING
from prolepsis.server.front.key_file import KeyFile, new_key
from prolepsis.server.front.keys import Keys
from tests.control.store.databases import opened
from tests.server.batches.conftest import Serve, chat_line, ended, jsonl, made, results
from tests.server.conftest import Served, served
from tests.server.fakes import FakeEngine
from tests.waiting import wait_for


def client_of(server: Served, key: str) -> openai.OpenAI:
    server.clients.append(openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0))
    return server.clients[-1]


def test_a_batch_runs_to_its_end(serve: Serve) -> None:
    client = serve().openai()
    lines = [chat_line(f"line-{i}", f"Question {i}") for i in range(5)]
    lines[3]["body"]["temperature"] = 9
    batch = made(client, jsonl(*lines), metadata={"night": "1"})
    assert (batch.status, batch.object, batch.metadata) == ("validating", "batch", {"night": "1"})
    done = ended(client, batch)
    assert done.status == "completed"
    assert done.model == "tiny"
    assert done.request_counts is not None
    assert done.request_counts.to_dict() == {"total": 5, "completed": 4, "failed": 1}
    assert done.expires_at == done.created_at + 86400
    assert done.in_progress_at is not None
    assert done.finalizing_at is not None
    assert done.completed_at is not None
    assert done.usage is not None
    assert done.usage.output_tokens > 0
    assert done.usage.total_tokens == done.usage.input_tokens + done.usage.output_tokens
    answers = results(client, done.output_file_id)
    assert [one["custom_id"] for one in answers] == ["line-0", "line-1", "line-2", "line-4"]
    assert answers[0]["id"].startswith("batch_req_")
    assert answers[0]["error"] is None
    assert answers[0]["response"]["status_code"] == 200
    assert answers[0]["response"]["body"]["choices"][0]["message"]["content"] == "Grüße, world! 👋 done"
    [fault] = results(client, done.error_file_id)
    assert (fault["custom_id"], fault["response"]["status_code"]) == ("line-3", 400)
    assert fault["response"]["body"]["error"]["param"] == "temperature"
    assert done.output_file_id is not None
    file = client.files.retrieve(done.output_file_id)
    assert (file.purpose, file.bytes) == ("batch_output", len(client.files.content(file.id).content))
    assert file.expires_at is not None
    assert client.batches.list().data == [done]


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [("/v1/completions", {"prompt": "Hi"}), ("/v1/responses", {"input": "Hi"})],
)
def test_lines_run_at_each_endpoint_that_generates(serve: Serve, endpoint: str, body: dict[str, str]) -> None:
    client = serve().openai()
    line = {"custom_id": "a", "method": "POST", "url": endpoint, "body": {"model": "tiny", **body}}
    done = ended(client, made(client, jsonl(line), endpoint))
    [answer] = results(client, done.output_file_id)
    assert "Gr" in str(answer["response"]["body"])
    assert done.usage is not None
    assert done.usage.input_tokens > 0


def test_what_a_line_asks_in_vain_is_named_beside_its_answer(serve: Serve) -> None:
    client = serve().openai()
    done = ended(client, made(client, jsonl(chat_line("a", verbosity="high"), chat_line("b"))))
    named, other = results(client, done.output_file_id)
    assert named["warning"] == '299 - "without effect: verbosity"'
    assert "warning" not in other


FAULTS = [
    ("{", "invalid_json_line", None),
    ("[]", "invalid_type", None),
    ({**chat_line("b"), "url": "/v1/embeddings"}, "invalid_url", "url"),
    ({**chat_line("b"), "method": "GET"}, "invalid_value", "method"),
    ({name: value for name, value in chat_line("b").items() if name != "custom_id"}, None, "custom_id"),
    (chat_line("a"), "duplicate_custom_id", "custom_id"),
    (chat_line("b", model="other"), "mismatched_model", "body.model"),
    (chat_line("c", stream=True), "invalid_value", "body.stream"),
]


def test_faults_of_a_file_are_named_by_line(serve: Serve) -> None:
    client = serve().openai()
    done = ended(client, made(client, jsonl(chat_line("a"), "", *(fault for fault, *_ in FAULTS))))
    assert done.status == "failed"
    assert done.failed_at is not None
    assert done.output_file_id is None
    assert done.errors is not None
    assert done.errors.object == "list"
    found = [(fault.line, fault.code, fault.param) for fault in done.errors.data or []]
    assert found == [(i, code or "missing_required_parameter", param) for i, (_, code, param) in enumerate(FAULTS, 3)]
    messages = [str(fault.message) for fault in done.errors.data or []]
    assert "'/v1/embeddings'; allowed: /v1/chat/completions" in messages[2]


def test_an_empty_file_fails(serve: Serve) -> None:
    client = serve().openai()
    done = ended(client, made(client, b"\n"))
    assert done.errors is not None
    assert [fault.code for fault in done.errors.data or []] == ["empty_file"]


def test_more_lines_than_allowed_are_one_fault(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prolepsis.server.batches.lines.MOST_LINES", 50)
    client = serve().openai()
    done = ended(client, made(client, jsonl(*(chat_line(f"{i}") for i in range(52)))))
    assert done.errors is not None
    assert [(fault.code, fault.line) for fault in done.errors.data or []] == [("too_many_lines", 51)]


def test_lists_have_pages(serve: Serve) -> None:
    client = serve().openai()
    batches = [made(client, jsonl(chat_line("a"))).id for _ in range(5)]
    assert [batch.id for batch in client.batches.list(limit=2)] == batches[::-1]
    first = client.batches.list(limit=2)
    assert (first.has_more, len(first.data)) == (True, 2)
    inputs = [file.id for file in client.files.list(purpose="batch", order="asc", limit=2)]
    assert [client.batches.retrieve(batch).input_file_id for batch in batches] == inputs
    with pytest.raises(openai.NotFoundError, match="batch_none"):
        client.batches.list(after="batch_none")


def test_files_are_kept_byte_for_byte_and_deleted(serve: Serve) -> None:
    client = serve().openai()
    content = bytes(range(256)) * 9000 + b"\r\n--" + b"x" * 100
    file = client.files.create(
        file=("näme.jsonl", content), purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600}
    )
    assert (file.bytes, file.filename, file.status) == (len(content), "näme.jsonl", "processed")
    assert file.expires_at == file.created_at + 3600
    assert client.files.content(file.id).content == content
    assert client.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(file.id)
    with pytest.raises(openai.BadRequestError, match="vision"):
        client.files.create(file=("a", b"x"), purpose="vision")


def test_a_file_and_a_tenant_have_a_bound(serve: Serve) -> None:
    client = serve(batch_file_bytes=3000).openai()
    client.files.create(file=("a", b"x" * 2000), purpose="batch")
    with pytest.raises(openai.APIStatusError, match="1000 bytes") as caught:
        client.files.create(file=("a", b"x" * 2000), purpose="batch")
    assert caught.value.status_code == 413
    assert len(client.files.list().data) == 1


def test_a_tenant_has_so_many_batches_that_run(serve: Serve, sqlite: str) -> None:
    client = serve().openai()
    file = client.files.create(file=("a", jsonl(chat_line("a"))), purpose="batch")
    with closing(opened(sqlite)) as database:
        table = BatchTable(database)
        for number in range(MOST_RUNNING):
            table.add(
                StoredBatch(
                    batch_id=f"batch_{number}",
                    tenant="",
                    key_id="",
                    model="",
                    input_file_id=file.id,
                    document={"endpoint": "/v1/completions", "completion_window": "24h"},
                    status="validating",
                    created_at=0.0,
                    expires_at=1e12,
                )
            )
            table.take_reading(f"batch_{number}")  # by another server, so far
    with pytest.raises(openai.RateLimitError, match="100 batches"):
        client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")


def test_a_model_that_is_not_served_is_refused_at_once(serve: Serve) -> None:
    client = serve().openai()
    with pytest.raises(openai.NotFoundError, match="other"):
        made(client, jsonl(chat_line("a", model="other")))
    with pytest.raises(openai.BadRequestError, match="/v1/embeddings"):
        made(client, jsonl(chat_line("a")), "/v1/embeddings")
    with pytest.raises(openai.NotFoundError, match="file-none"):
        client.batches.create(input_file_id="file-none", endpoint="/v1/responses", completion_window="24h")


def test_other_tenants_find_nothing(serve: Serve, tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "keys.json")
    made_keys = [new_key(tenant, roles=("client",), tier="standard", models=()) for tenant in ("acme", "other")]
    for record, _ in made_keys:
        keys.add(record)
    server = serve(keys=Keys(keys))
    acme, other = (client_of(server, key) for _, key in made_keys)
    batch = ended(acme, made(acme, jsonl(chat_line("a"))))
    assert batch.status == "completed"
    for call in (other.batches.retrieve, other.batches.cancel):
        with pytest.raises(openai.NotFoundError):
            call(batch.id)
    for ask in (other.files.retrieve, other.files.content, other.files.delete):
        with pytest.raises(openai.NotFoundError):
            ask(str(batch.output_file_id))
    assert (other.batches.list().data, other.files.list().data) == ([], [])
    assert len(acme.files.list().data) == 2


def test_cancel_keeps_what_has_run(serve: Serve) -> None:
    engine = FakeEngine(delay_s=0.2)
    client = serve(engine, max_in_engine=2).openai()
    batch = made(client, jsonl(*(chat_line(f"{i}") for i in range(4))))
    wait_for(lambda: engine.requests)
    with pytest.raises(openai.ConflictError, match=batch.id):
        client.files.delete(batch.input_file_id)
    assert client.batches.cancel(batch.id).status == "cancelling"
    assert client.batches.cancel(batch.id).cancelling_at is not None
    done = ended(client, batch)
    assert (done.status, done.cancelled_at is None) == ("cancelled", False)
    assert len(engine.requests) == 1
    assert [answer["custom_id"] for answer in results(client, done.output_file_id)] == ["0"]
    faults = results(client, done.error_file_id)
    assert [(fault["custom_id"], fault["error"]["code"]) for fault in faults] == [
        (name, "batch_cancelled") for name in "123"
    ]
    assert client.batches.cancel(batch.id).status == "cancelled"
    assert client.files.delete(batch.input_file_id).deleted


def test_without_a_store_no_file_is_taken() -> None:
    with served(FakeEngine()) as server, pytest.raises(openai.ConflictError, match="store is none"):
        server.openai().files.create(file=("a", b"x"), purpose="batch")


@pytest.mark.parametrize(
    ("form", "what"),
    [
        (b"", "'file'"),
        (b"--c\r\n", "Invalid multipart data"),
        (b'--b\r\nContent-Disposition: form-data; name="else"\r\n\r\nx\r\n--b--', "'else'"),
        (b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nx\r\n' * 2 + b"--b--", "'purpose' 2 times"),
        (b"--b\r\nContent-Disposition: form-data\r\n\r\nx\r\n--b--", '"name" must be provided'),
        (b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--b--', "'file'"),
    ],
)
def test_a_wrong_form_is_refused_by_name(serve: Serve, form: bytes, what: str) -> None:
    server = serve()
    headers = {"content-type": "multipart/form-data; boundary=b"}
    reply = httpx2.post(f"{server.url}/v1/files", content=form, headers=headers)
    assert reply.status_code == 400
    assert what in reply.json()["error"]["message"]
    assert httpx2.get(f"{server.url}/v1/files").json()["data"] == []
    assert (
        httpx2.post(f"{server.url}/v1/files", content=form, headers={"content-type": "text/plain"}).status_code == 400
    )
