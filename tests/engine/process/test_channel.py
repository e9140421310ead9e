"""Batches over a socket pair."""

import asyncio
import errno
import socket
import threading

import pytest

from prolepsis.core import errors
from prolepsis.core.errors import ProlepsisError, UserError
from prolepsis.engine.process.channel import Channel, read_now, write_now
from tests.waiting import ended


async def opened() -> tuple[Channel, Channel]:
    here, there = (Channel(end) for end in socket.socketpair())
    await here.open()
    await there.open()
    return here, there


async def test_messages_of_one_turn_travel_as_one_batch_in_order() -> None:
    here, there = await opened()
    for message in ("a", "b", "c"):
        here.send(message)
    assert await there.receive() == ["a", "b", "c"]
    here.send("d")
    assert await there.receive() == ["d"]
    await here.close()
    await there.close()


async def test_messages_are_sent_in_order() -> None:
    here, there = await opened()
    here.put("first")
    here.send("second")
    assert await there.receive() == ["first", "second"]
    await here.close()
    await there.close()


async def test_messages_from_before_the_opening_and_other_threads_arrive() -> None:
    here, there = (Channel(end) for end in socket.socketpair())
    here.send("early")
    await here.open()
    await there.open()
    assert await there.receive() == ["early"]
    thread = threading.Thread(target=here.send, args=("from a thread",), daemon=True)
    thread.start()
    assert await there.receive() == ["from a thread"]
    ended(thread)
    await here.close()
    await there.close()


async def test_a_large_message_arrives_whole() -> None:
    here, there = await opened()
    large = tuple(range(200_000))
    here.send(large)
    assert await there.receive() == [large]
    await here.close()
    await there.close()


async def test_the_end_of_the_other_side_is_seen_after_its_last_messages() -> None:
    here, there = await opened()
    here.send("last")
    await here.close()
    assert await there.receive() == ["last"]
    with pytest.raises(EOFError, match="gone"):
        await there.receive()
    there.send("to nobody")
    await asyncio.sleep(0)
    await there.close()


def test_before_there_is_an_event_loop_batches_are_waited_for() -> None:
    here, there = socket.socketpair()
    large = bytes(50_000)
    write_now(here, "a", large)
    assert read_now(there) == ["a", large]
    here.close()
    with pytest.raises(EOFError, match="gone"):
        read_now(there)
    there.close()


ERRORS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, ProlepsisError)]


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
async def test_every_error_arrives_as_it_was(kind: type[ProlepsisError]) -> None:
    here, there = await opened()
    given = kind("what, and what is allowed", param="seed") if issubclass(kind, UserError) else kind("what happened")
    here.send(given)
    [found] = await there.receive()
    assert type(found) is kind
    assert str(found) == str(given)
    assert vars(found) == vars(given)
    await here.close()
    await there.close()


async def test_a_network_that_gives_up_is_the_end_of_the_connection() -> None:
    """What was sent is not acknowledged in time, or there is no way to the machine: neither is a `ConnectionError`."""
    here, there = socket.socketpair()
    streams = await asyncio.open_connection(sock=here)
    channel = Channel(streams)
    await channel.open()
    streams[1].transport.get_protocol().connection_lost(TimeoutError(errno.ETIMEDOUT, "Connection timed out"))
    with pytest.raises(EOFError):
        await channel.receive()
    await channel.close()
    there.close()
