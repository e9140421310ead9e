"""Stored responses through OpenAI's client: conversations, pages, tenants, the background, its events and its ends."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from sqlalchemy import update

from prolepsis.control.store import tables
from prolepsis.control.store.responses import ResponseTable
from prolepsis.control.web.caller import DEVELOPER
from prolepsis.control.web.reply_headers import WARNING
from prolepsis.core.errors import EngineError
from prolepsis.server.answering.stored_responses import MOST_RUNNING, BackgroundResponse, FollowedEvents
from prolepsis.server.front.key_file import KeyFile
from prolepsis.server.front.keys import Keys
from tests.control.store.databases import opened
from tests.control.store.test_responses import stored
from tests.fake_client import INFO
from tests.server.batches.conftest import ended as batch_ended
from tests.server.batches.conftest import jsonl, made, serving
from tests.server.batches.test_runner import add_keys, client_of
from tests.server.conftest import Served
from tests.server.fakes import FakeEngine
from tests.server.openai.test_responses import CALL, ROOMY, TOOL, plain
from tests.waiting import wait_for

Serve = Callable[..., Served]
TEXT = "Grüße, world! 👋 done"


@pytest.fixture
def serve(sqlite: str) -> Iterator[Serve]:
    """Start servers that share a store, and keep responses there."""
    with serving(sqlite) as start:
        yield lambda *args, **changes: start(*args, **{"response_retention_days": 30, **changes})


def ended(client: openai.OpenAI, response_id: str) -> Any:
    """Wait for a response to end."""
    wait_for(lambda: client.responses.retrieve(response_id).status not in ("queued", "in_progress"))
    return client.responses.retrieve(response_id)


def messages_of(server: Served) -> str:
    """Return the prompt that the engine got last."""
    return bytes(server.engine.requests[-1].prompt_token_ids).decode()


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_is_stored_unless_the_client_says_no(serve: Serve, stream: bool) -> None:
    client: Any = serve().openai().responses
    made = client.create(model="tiny", input="Hi", metadata={"a": "b"}, stream=stream)
    reply = list(made)[-1].response if stream else made
    assert reply.to_dict()["store"] is True
    assert client.retrieve(reply.id).to_dict() == reply.to_dict()
    unkept = client.create(model="tiny", input="Hi", store=False)
    with pytest.raises(openai.NotFoundError):
        client.retrieve(unkept.id)


def test_nothing_is_stored_where_the_operator_has_it_off(serve: Serve) -> None:
    client: Any = serve(response_retention_days=0).openai().responses
    reply = client.create(model="tiny", input="Hi")
    assert reply.to_dict()["store"] is False
    with pytest.raises(openai.NotFoundError):
        client.retrieve(reply.id)
    for asked in ({"store": True}, {"background": True}):
        with pytest.raises(openai.BadRequestError, match="response_retention_days") as refused:
            client.create(model="tiny", input="Hi", **asked)
        assert refused.value.param in asked


def test_without_its_store_a_response_says_that_it_is_not_stored(serve: Serve, sqlite: str) -> None:
    server = serve()
    client: Any = server.openai().responses
    Path(sqlite.removeprefix("sqlite:///")).unlink()
    raw = client.with_raw_response.create(model="tiny", input="Hi")
    assert "the response is not stored, as the store is unavailable" in raw.headers[WARNING]
    assert raw.parse().to_dict()["store"] is False
    last = list(client.create(model="tiny", input="Hi", stream=True))[-1]
    assert (last.type, last.response.to_dict()["store"]) == ("response.completed", False)
    with pytest.raises(openai.InternalServerError) as refused:
        client.create(model="tiny", input="Hi", background=True)
    assert (refused.value.status_code, refused.value.code) == (503, "store_unavailable")


def test_a_stored_response_has_an_id_of_its_own(serve: Serve) -> None:
    client: Any = serve().openai().responses
    raw = client.with_raw_response.create(model="tiny", input="Hi", extra_body={"request_id": "mine"})
    assert raw.headers[WARNING] == '299 - "without effect: request_id, as a stored response has an id of its own"'
    assert client.retrieve(raw.parse().id).status == "completed"
    unkept = client.create(model="tiny", input="Hi", store=False, extra_body={"request_id": "mine"})
    assert unkept.id == "resp_mine"


def test_a_conversation_goes_on_by_its_last_response(serve: Serve) -> None:
    server = serve()
    client: Any = server.openai().responses
    first = client.create(model="tiny", input="One", instructions="Be brief.")
    second = client.create(model="tiny", input="Two", previous_response_id=first.id, instructions="Be kind.")
    assert second.previous_response_id == first.id
    third = [{"role": "developer", "content": "Now."}, {"role": "user", "content": "Three"}]
    client.create(model="tiny", input=third, previous_response_id=second.id)
    turns = f"user:One\nassistant:{TEXT}\nuser:Two\nassistant:{TEXT}\n"
    assert messages_of(server).startswith(turns)
    assert "Be " not in messages_of(server)
    counted = client.input_tokens.count(model="tiny", input=third, previous_response_id=second.id)
    assert counted.input_tokens == len(server.engine.requests[-1].prompt_token_ids)


def test_a_call_and_its_output_go_on(sqlite: str) -> None:
    with serving(sqlite) as start:
        engine = FakeEngine(text=CALL, info=ROOMY)
        server = start(engine, response_retention_days=1)
        client: Any = server.openai().responses
        first = client.create(model="tiny", input="Köln?", tools=[TOOL])
        result = {"type": "function_call_output", "call_id": first.output[0].call_id, "output": "sun"}
        client.create(model="tiny", input=[result], previous_response_id=first.id, tools=[TOOL])
        stateless = [{"role": "user", "content": "Köln?"}, *first.output, result]
        client.create(model="tiny", input=stateless, tools=[TOOL], store=False)
        asked = [request.prompt_token_ids for request in engine.requests]
    assert asked[1] == asked[2]


def test_a_conversation_ends_at_a_gap(serve: Serve) -> None:
    client: Any = serve().openai().responses
    first = client.create(model="tiny", input="One")
    second = client.create(model="tiny", input="Two", previous_response_id=first.id)
    client.delete(first.id)
    for previous, missing in (("resp_none", "resp_none"), (second.id, first.id)):
        with pytest.raises(openai.BadRequestError, match=missing) as refused:
            client.create(model="tiny", input="Three", previous_response_id=previous)
        assert refused.value.code == "previous_response_not_found"
        assert refused.value.param == "previous_response_id"


def test_tenants_do_not_see_each_others_responses(serve: Serve, tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "keys.json")
    (_, key), (_, other) = add_keys(keys, "acme", "other")
    server = serve(keys=Keys(keys))
    with client_of(server, key) as mine, client_of(server, other) as theirs:
        reply = mine.responses.create(model="tiny", input="Hi")
        for act in (
            theirs.responses.retrieve,
            theirs.responses.delete,
            theirs.responses.cancel,
            theirs.responses.input_items.list,
        ):
            with pytest.raises(openai.NotFoundError, match=reply.id):
                act(reply.id)
        with pytest.raises(openai.BadRequestError, match=reply.id):
            theirs.responses.create(model="tiny", input="Hi", previous_response_id=reply.id)
        assert mine.responses.retrieve(reply.id).id == reply.id


def test_input_items_have_pages(serve: Serve) -> None:
    client: Any = serve().openai().responses
    first = client.create(model="tiny", input="One")
    given = [{"role": "user", "content": text} for text in ("Two", "Three")]
    second = client.create(model="tiny", input=given, previous_response_id=first.id)
    newest = client.input_items.list(second.id, limit=3)
    texts = [item.content[0].text for item in newest.data]
    assert (texts, newest.has_more) == (["Three", "Two", TEXT], True)
    assert [newest.first_id, newest.last_id] == [newest.data[0].id, newest.data[-1].id]
    assert newest.data[-1].id == first.output[0].id
    assert [item.content[0].text for item in newest] == [*texts, "One"]  # it reads the next page
    oldest = client.input_items.list(second.id, limit=1, order="asc")
    assert [item.id for item in oldest] == [item.id for item in newest][::-1]
    assert {item.status for item in newest.data} == {"completed"}
    same = [{"role": "user", "id": "msg_same", "content": text} for text in ("a", "b", "c")]
    third = client.create(model="tiny", input=same)
    assert len(list(client.input_items.list(third.id, limit=1))) == 1, "clients may repeat ids, and pages end"
    with pytest.raises(openai.NotFoundError, match="msg_none"):
        client.input_items.list(second.id, after="msg_none")
    with pytest.raises(openai.BadRequestError, match="limit"):
        client.input_items.list(second.id, limit=101)


def test_a_background_response_runs_without_its_client(serve: Serve) -> None:
    server = serve(FakeEngine(delay_s=0.02))
    client: Any = server.openai().responses
    begun = client.create(model="tiny", input="Hi", background=True)
    assert (begun.status, begun.background, begun.output, begun.to_dict()["store"]) == ("queued", True, [], True)
    done = ended(server.openai(), begun.id)
    whole = client.create(model="tiny", input="Hi")
    assert done.status == "completed"
    assert [plain(item) for item in done.output] == [plain(item) for item in whole.output]
    assert done.usage == whole.usage
    assert client.create(model="tiny", input="More", previous_response_id=done.id).status == "completed"


def test_a_response_of_a_key_that_is_revoked_ends(serve: Serve, tmp_path: Path) -> None:
    keys, engine = KeyFile(tmp_path / "keys.json"), FakeEngine(delay_s=1.0, step=1)
    (key_id, key), (_, other) = add_keys(keys, "acme", "acme")
    server = serve(engine, Keys(keys))
    with client_of(server, key) as first, client_of(server, other) as second:
        name = first.responses.create(model="tiny", input="Hi", background=True).id
        keys.remove(key_id)
        failed = ended(second, name)
    assert (failed.status, failed.error.message) == ("failed", "The API key is not valid here.")


def test_a_tenant_follows_so_many_responses_at_once(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prolepsis.server.answering.stored_responses.MOST_FOLLOWERS", 2)
    server = serve(FakeEngine(delay_s=0.2, step=1))
    client: Any = server.openai().responses
    with client.create(model="tiny", input="Hi", background=True, stream=True) as one:
        name = next(one).response.id
        with client.retrieve(name, stream=True), pytest.raises(openai.RateLimitError, match="2 streams") as refused:
            client.retrieve(name, stream=True)
        assert refused.value.response.headers["retry-after"] == "10"
    wait_for(lambda: not server_follows(client, name))


def server_follows(client: Any, name: str) -> bool:
    """Return whether there is no room to follow a response."""
    try:
        client.retrieve(name, stream=True).close()
    except openai.RateLimitError:
        return True
    return False


def test_a_response_that_is_too_large_is_not_stored(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prolepsis.server.answering.stored_responses.MOST_BYTES", 100)
    client: Any = serve().openai().responses
    raw = client.with_raw_response.create(model="tiny", input="Hi")
    assert "the response is not stored, as it is too large" in raw.headers[WARNING]
    assert raw.parse().to_dict()["store"] is False


def test_a_conversation_that_is_too_large_is_refused(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    client: Any = serve().openai().responses
    first = client.create(model="tiny", input="Hi")
    monkeypatch.setattr("prolepsis.server.answering.stored_responses.MOST_BYTES", 1000)
    with pytest.raises(openai.BadRequestError, match="more than 1000 bytes") as refused:
        client.create(model="tiny", input="More", previous_response_id=first.id)
    assert refused.value.param == "previous_response_id"


def test_a_stream_goes_on_where_it_broke_off(serve: Serve) -> None:
    """What a client reads again after it has left equals what it would have read, event by event."""
    server = serve(FakeEngine(delay_s=0.02, step=1))
    client: Any = server.openai().responses
    with client.create(model="tiny", input="Hi", background=True, stream=True) as stream:
        read = [next(stream) for _ in range(4)]
    name = read[0].response.id
    assert [event.sequence_number for event in read] == [0, 1, 2, 3]
    rest = list(client.retrieve(name, stream=True, starting_after=3))
    events = list(client.retrieve(name, stream=True))
    assert events == [*read, *rest]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    assert [event.response.status for event in events[:2]] == ["queued", "in_progress"]
    assert events[-1].type == "response.completed"
    assert events[-1].response == client.retrieve(name)
    assert events[-1].response.output_text == TEXT
    padded = list(client.retrieve(name, stream=True, include_obfuscation=True))
    assert [bool(getattr(event, "obfuscation", "")) for event in padded].count(True) > 0
    with pytest.raises(openai.BadRequestError, match=f"No event behind {len(events) - 1}"):
        list(client.retrieve(name, stream=True, starting_after=len(events) - 1))


def test_only_a_stream_in_the_background_has_events(serve: Serve) -> None:
    client: Any = serve().openai().responses
    for asked in ({"stream": True}, {"background": True}):
        made = client.create(model="tiny", input="Hi", **asked)
        name = list(made)[-1].response.id if "stream" in asked else made.id
        with pytest.raises(openai.BadRequestError, match="background and stream"):
            list(client.retrieve(name, stream=True))


def test_events_have_a_bound() -> None:
    """Those beyond it are not kept, and neither are smaller ones behind them: a log has no gap."""
    running = BackgroundResponse(DEVELOPER, {"status": "queued"}, 10, lambda error: {}, event_bytes=100)
    for number, text in enumerate(("a", "b" * 100, "c"), 1):
        running.take({"type": "response.output_text.delta", "delta": text, "sequence_number": number})
    news = running.news("resp_a")
    assert [number for number, _ in news.events] == [1]
    assert news.num_bytes == 10 + len(news.events[0][1])


def test_a_response_ends_once() -> None:
    running = BackgroundResponse(DEVELOPER, {"status": "queued"}, 10, lambda error: {"status": "x"}, event_bytes=999)
    running.take({"type": "response.completed", "response": {"status": "completed"}})
    running.fail(ValueError("late"))
    assert running.document == {"status": "completed"}
    assert len(running.news("resp_a").events) == 1


def test_a_log_that_was_cut_says_so(serve: Serve, sqlite: str) -> None:
    server = serve()
    with closing(opened(sqlite)) as database:
        created = {"type": "response.created", "sequence_number": 0}
        ResponseTable(database).add(stored("resp_a", "completed"), most_bytes=10**9, events=[json.dumps(created)])
    with pytest.raises(openai.APIError, match="No event behind 0 is kept of this response, which is completed"):
        list(server.openai().responses.retrieve("resp_a", stream=True))


@pytest.mark.parametrize("stream", [False, True])
def test_a_background_response_is_cancelled(serve: Serve, stream: bool) -> None:
    server = serve(FakeEngine(hold_after=2))
    client: Any = server.openai().responses
    made = client.create(model="tiny", input="Hi", background=True, stream=stream)
    name = next(iter(made)).response.id if stream else made.id
    wait_for(lambda: client.retrieve(name).status == "in_progress")
    assert client.cancel(name).status == "cancelled"
    assert client.cancel(name).status == "cancelled"
    assert client.retrieve(name).status == "cancelled"
    wait_for(lambda: server.engine.aborted)
    if stream:
        last = list(client.retrieve(name, stream=True))[-1]
        assert (last.type, last.response.status) == ("response.incomplete", "cancelled")
    with pytest.raises(openai.BadRequestError, match="cancelled"):
        client.create(model="tiny", input="Hi", previous_response_id=name)


def test_what_has_ended_is_not_cancelled(serve: Serve) -> None:
    client: Any = serve().openai().responses
    done = client.create(model="tiny", input="Hi")
    with pytest.raises(openai.BadRequestError, match="completed"):
        client.cancel(done.id)


def test_a_deleted_response_stops_and_is_gone(serve: Serve, sqlite: str) -> None:
    server = serve(FakeEngine(hold_after=2))
    client: Any = server.openai().responses
    begun = next(iter(client.create(model="tiny", input="Hi", background=True, stream=True)))
    reply = httpx2.delete(f"{server.url}/v1/responses/{begun.response.id}")
    assert reply.json() == {"id": begun.response.id, "object": "response", "deleted": True}
    wait_for(lambda: server.engine.aborted)
    with pytest.raises(openai.NotFoundError):
        client.delete(begun.response.id)
    with closing(opened(sqlite)) as database, database.read() as connection:
        assert connection.execute(tables.response_events.select()).all() == []


def test_a_failure_ends_a_background_response(serve: Serve) -> None:
    server = serve(FakeEngine(fail_after=2, error=EngineError("a step failed")))
    client: Any = server.openai().responses
    events = list(client.create(model="tiny", input="Hi", background=True, stream=True))
    assert events[-1].type == "response.failed"
    failed = client.retrieve(events[0].response.id)
    assert (failed.status, failed.error.message) == ("failed", "a step failed")


def test_what_refuses_a_background_response_is_its_reply(serve: Serve) -> None:
    client: Any = serve(requests_per_minute={"tenant": 1}).openai().responses
    first = client.create(model="tiny", input="Hi", background=True)
    with pytest.raises(openai.RateLimitError):
        client.create(model="tiny", input="Hi", background=True)
    assert ended(serve().openai(), first.id).status == "completed"


def test_a_tenant_has_so_many_in_the_background(serve: Serve, sqlite: str) -> None:
    client: Any = serve().openai().responses
    with closing(opened(sqlite)) as database:
        for i in range(MOST_RUNNING):
            ResponseTable(database).add(stored(f"resp_{i}", "in_progress"), most_bytes=10**9)
    with pytest.raises(openai.RateLimitError, match="have not ended"):
        client.create(model="tiny", input="Hi", background=True)
    client.cancel("resp_0")
    assert client.create(model="tiny", input="Hi", background=True).status == "queued"


def test_a_server_that_stops_fails_what_it_runs(sqlite: str) -> None:
    with serving(sqlite) as start:
        client: Any = start(FakeEngine(hold_after=1), response_retention_days=1).openai().responses
        first = next(iter(client.create(model="tiny", input="Hi", background=True, stream=True)))
    with serving(sqlite) as start:
        client = start(response_retention_days=1).openai().responses
        failed = client.retrieve(first.response.id)
        assert failed.status == "failed"
        assert "stopped before the response had ended" in failed.error.message
        assert list(client.retrieve(first.response.id, stream=True))[-1].type == "response.failed"


def test_what_a_lost_server_ran_fails(serve: Serve, sqlite: str) -> None:
    """Another server of the store sees that its lease has lapsed; what it still says is not kept."""
    engine = FakeEngine(hold_after=1)
    client: Any = serve(engine).openai().responses
    begun = client.create(model="tiny", input="Hi", background=True, stream=True)
    name = next(iter(begun)).response.id
    other: Any = serve().openai().responses

    def is_over() -> bool:
        """Let the lease lapse, which the first server renews, and see whether the other has ended the response."""
        with closing(opened(sqlite)) as database, database.write() as connection:
            connection.execute(update(tables.responses).values(leased_until=time.time() - 1))
        return bool(other.retrieve(name).status == "failed")

    wait_for(is_over)
    failed = other.retrieve(name)
    assert (failed.status, failed.error.code) == ("failed", "server_error")
    assert "has ended" in failed.error.message
    wait_for(lambda: engine.aborted)


def test_a_response_is_followed_from_another_server(serve: Serve) -> None:
    first: Any = serve(FakeEngine(delay_s=0.02, step=1)).openai().responses
    second: Any = serve().openai().responses
    begun = first.create(model="tiny", input="Hi", background=True, stream=True)
    name = next(iter(begun)).response.id
    there = list(second.retrieve(name, stream=True))
    assert there == list(first.retrieve(name, stream=True))
    assert there[-1].response.output_text == TEXT


ROLES = {"role": "system", "content": "Rule."}


def test_truncation_leaves_out_the_oldest(serve: Serve) -> None:
    server = serve(FakeEngine(info=replace(INFO, max_model_len=400)))
    client: Any = server.openai().responses
    turns = [{"role": "user", "content": letter * 30} for letter in "abcdefghijklmnopqrst"]
    raw = client.with_raw_response.create(
        model="tiny", input=[ROLES, *turns], instructions="Be brief.", truncation="auto", max_output_tokens=100
    )
    prompt = messages_of(server)
    assert raw.headers[WARNING] == '299 - "truncation: the answer was made without 13 of the oldest items"'
    kept = "".join(f"user:{turn['content']}\n" for turn in turns[13:])
    assert prompt == f"system:Be brief.\nsystem:Rule.\n{kept}"
    assert raw.parse().truncation == "auto"
    with pytest.raises(openai.BadRequestError, match="maximum context length"):
        client.create(model="tiny", input=turns, truncation="disabled", max_output_tokens=100)
    with pytest.raises(openai.BadRequestError, match="maximum context length"):  # the newest one does not fit
        client.create(model="tiny", input="x" * 500, truncation="auto")


def test_a_line_of_a_batch_is_stored_if_it_says_so(serve: Serve, sqlite: str) -> None:
    client = serve().openai()
    bodies = [{"model": "tiny", "input": "Hi", **more} for more in ({}, {"store": True})]
    line = {"method": "POST", "url": "/v1/responses"}
    lines = [{**line, "custom_id": f"{i}", "body": body} for i, body in enumerate(bodies)]
    assert batch_ended(client, made(client, jsonl(*lines), "/v1/responses")).status == "completed"
    with closing(opened(sqlite)) as database, database.read() as connection:
        assert len(connection.execute(tables.responses.select()).all()) == 1


class Log:
    """Events in a store."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.status = "in_progress"
        self.num_reads = 0

    def add(self, number: int) -> list[str]:
        some = [json.dumps({"number": len(self.texts) + i}) for i in range(number)]
        self.texts += some
        return some

    def read(self, after: int) -> tuple[str, Sequence[str]]:
        self.num_reads += 1
        return self.status, self.texts[after + 1 :][:5]


async def numbers(followed: FollowedEvents, after: int = -1) -> list[object]:
    """Read until there is no further event."""
    found = list[object]()
    while True:
        _, events = await followed.behind(after + len(found))
        if not events:
            return found
        found += [event["number"] for event in events]


async def test_followers_share_what_is_read() -> None:
    log = Log()
    followed = FollowedEvents(log.read, lambda: True)
    log.add(12)
    assert await asyncio.gather(*(numbers(followed) for _ in range(100))) == [list(range(12))] * 100
    assert log.num_reads == 4, "three pages, and that there is no fourth"
    for _ in range(10):
        first = len(log.texts)
        followed.add(first, log.add(3))
        assert (
            await asyncio.gather(*(numbers(followed, first - 1) for _ in range(100)))
            == [list(range(first, first + 3))] * 100
        )
    assert log.num_reads == 4, "the events of a response that runs here are not read"
    assert await numbers(followed, 1) == list(range(2, 42)), "one that is far behind reads the store"


async def test_followers_of_another_servers_response_share_a_look_at_the_store() -> None:
    log = Log()
    followed = FollowedEvents(log.read, lambda: False)

    async def follow() -> int:
        number, status = 0, "in_progress"
        while status == "in_progress":
            status, events = await followed.behind(number - 1)  # type: ignore[assignment]
            number += len(events)
            if not events:
                await followed.changed()
        return number

    followers = [asyncio.create_task(follow()) for _ in range(50)]
    await asyncio.sleep(0)
    log.add(4)
    await asyncio.sleep(0.3)
    log.status = "completed"
    assert await asyncio.gather(*followers) == [4] * 50
    assert log.num_reads < 10


async def test_what_is_kept_while_the_store_is_read_is_not_missed() -> None:
    log = Log()

    def read(_: int) -> tuple[str, Sequence[str]]:
        followed.add(0, log.add(1))
        return "in_progress", ()

    followed = FollowedEvents(read, lambda: True)
    _, none = await followed.behind(-1)
    assert not none
    followed._read = log.read
    assert (await followed.behind(-1))[1] == [{"number": 0}]
