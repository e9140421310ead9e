"""Messages over a socket pair."""

import asyncio
import errno
import socket
import threading

import pytest

from prolepsis.core.errors import ContextTooLong
from prolepsis.core.messages import Abort
from prolepsis.remote.channel import (
    TO_FRONT_END,
    TO_HOST,
    Channel,
    front_end_channel,
    host_channel,
    read_now,
    write_now,
)
from prolepsis.remote.messages import Close, Leave, Rejected, ToFrontEnd, ToHost
from tests.waiting import ended


async def opened() -> tuple[Channel[ToHost, ToFrontEnd], Channel[ToFrontEnd, ToHost]]:
    here, there = socket.socketpair()
    ends = front_end_channel(here), host_channel(there)
    for end in ends:
        await end.open()
    return ends


async def test_messages_of_one_turn_arrive_together_and_in_order() -> None:
    here, there = await opened()
    for number in range(3):
        here.send(Leave(number))
    assert await there.receive() == [Leave(0), Leave(1), Leave(2)]
    here.send(Close())
    assert await there.receive() == [Close()]
    await here.close()
    await there.close()


async def test_messages_from_before_the_opening_and_other_threads_arrive() -> None:
    first, second = socket.socketpair()
    here, there = front_end_channel(first), host_channel(second)
    here.send(Leave(1))
    await here.open()
    await there.open()
    assert await there.receive() == [Leave(1)]
    thread = threading.Thread(target=here.send, args=(Leave(2),), daemon=True)
    thread.start()
    assert await there.receive() == [Leave(2)]
    ended(thread)
    await here.close()
    await there.close()


async def test_a_large_message_arrives_whole() -> None:
    here, there = await opened()
    large = Abort("x" * 2_000_000)
    here.send(large)
    assert await there.receive() == [large]
    await here.close()
    await there.close()


async def test_the_end_of_the_other_side_is_seen_after_its_last_messages() -> None:
    here, there = await opened()
    here.send(Leave(1))
    await here.close()
    assert await there.receive() == [Leave(1)]
    with pytest.raises(EOFError, match="gone"):
        await there.receive()
    there.send(Rejected(1, ContextTooLong("to nobody")))
    await asyncio.sleep(0)
    await there.close()


def test_before_there_is_an_event_loop_messages_are_waited_for() -> None:
    here, there = socket.socketpair()
    write_now(here, TO_HOST, Abort("x" * 50_000))
    assert read_now(there, TO_HOST) == Abort("x" * 50_000)
    write_now(there, TO_FRONT_END, Rejected(1, ContextTooLong("too long")))
    found = read_now(here, TO_FRONT_END)
    assert isinstance(found, Rejected)
    assert isinstance(found.error, ContextTooLong)
    here.close()
    with pytest.raises(EOFError):
        read_now(there, TO_HOST)
    there.close()


async def test_a_network_that_gives_up_is_the_end_of_the_connection() -> None:
    """What was sent is not acknowledged in time, or there is no way to the machine: neither is a `ConnectionError`."""
    here, there = socket.socketpair()
    streams = await asyncio.open_connection(sock=here)
    channel = front_end_channel(streams)
    await channel.open()
    streams[1].transport.get_protocol().connection_lost(TimeoutError(errno.ETIMEDOUT, "Connection timed out"))
    with pytest.raises(EOFError):
        await channel.receive()
    await channel.close()
    there.close()
