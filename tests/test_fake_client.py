"""The scripted client behaves as a client must."""

import asyncio

import pytest

from prolepsis.core.engine_client import EngineClient
from prolepsis.core.errors import ContextTooLong
from prolepsis.core.events import Aborted, Finished, Tokens
from prolepsis.core.messages import Abort
from tests.fake_client import FakeEngineClient, answer
from tests.fakes import request


async def test_answer_ends_every_sample_and_the_request() -> None:
    client: EngineClient = FakeEngineClient(answer([[1, 2], [3]]))
    events = [event async for event in client.generate(request("a", [9], n=2))]
    assert [e.finish_reason for e in events if isinstance(e, Tokens)] == [None, None, "stop", "stop"]
    assert isinstance(events[-1], Finished)


async def test_script_without_an_end_waits_for_the_abort() -> None:
    client = FakeEngineClient(lambda source: [Tokens(source.request_id, 0, (1,), position=0), 60.0])
    stream = client.generate(request("a", [9]))
    await anext(stream)
    asyncio.get_running_loop().call_later(0.01, client.send, Abort("a"))
    assert isinstance(await anext(stream), Aborted)
    assert client.aborted == ["a"]


async def test_closing_early_counts_as_an_abort() -> None:
    client = FakeEngineClient(answer([[1], [2]]))
    stream = client.generate(request("a", [9]))
    await anext(stream)
    await stream.aclose()
    assert client.aborted == ["a"]


async def test_exceptions_are_raised() -> None:
    client = FakeEngineClient(lambda source: [ContextTooLong("too long")])
    with pytest.raises(ContextTooLong):
        await anext(client.generate(request("a", [9])))
