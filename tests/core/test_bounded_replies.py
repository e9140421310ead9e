"""Replies of other services are read up to a bound, and compressed ones not at all."""

from collections.abc import AsyncIterator, Iterator

import httpx2
import pytest

from prolepsis.core.bounded_replies import async_hooks, hooks


class Endless(httpx2.AsyncByteStream, httpx2.SyncByteStream):
    """Sends without an end."""

    def __init__(self) -> None:
        self.num_sent = 0
        self.is_closed = False

    def __iter__(self) -> Iterator[bytes]:
        while True:
            self.num_sent += 1
            yield b"x" * 100

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self:
            yield part

    def close(self) -> None:
        self.is_closed = True

    async def aclose(self) -> None:
        self.is_closed = True


def test_a_reply_without_an_end_is_left_at_the_bound() -> None:
    body = Endless()
    transport = httpx2.MockTransport(lambda _: httpx2.Response(200, stream=body))
    with (
        httpx2.Client(transport=transport, event_hooks=hooks(1000)) as http,
        pytest.raises(httpx2.ReadError, match="more than 1000 bytes"),
    ):
        http.get("http://other/")
    assert (body.num_sent, body.is_closed) == (11, True)


async def test_so_is_one_that_the_event_loop_reads() -> None:
    body = Endless()
    transport = httpx2.MockTransport(lambda _: httpx2.Response(200, stream=body))
    async with httpx2.AsyncClient(transport=transport, event_hooks=async_hooks(1000)) as http:
        with pytest.raises(httpx2.ReadError, match="more than 1000 bytes"):
            await http.get("http://other/")
    assert (body.num_sent, body.is_closed) == (11, True)


@pytest.mark.parametrize("size", [0, 1000])
async def test_what_keeps_to_the_bound_is_read(size: int) -> None:
    transport = httpx2.MockTransport(lambda _: httpx2.Response(200, content=b"x" * size))
    async with httpx2.AsyncClient(transport=transport, event_hooks=async_hooks(1000)) as http:
        assert len((await http.get("http://other/")).content) == size


def test_a_compressed_reply_is_refused() -> None:
    transport = httpx2.MockTransport(lambda _: httpx2.Response(200, headers={"content-encoding": "gzip"}, content=b""))
    with (
        httpx2.Client(transport=transport, event_hooks=hooks()) as http,
        pytest.raises(httpx2.ReadError, match="encoded as 'gzip'; asked for: identity"),
    ):
        http.get("http://other/")
