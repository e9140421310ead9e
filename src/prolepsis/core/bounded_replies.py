"""Bounds the memory that a reply of another service takes: hooks for clients of httpx2, and posts to webhooks."""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

import httpx2

MOST_BYTES = 2**23
WEBHOOK_TIMEOUT_S = 10.0
PLAIN = {"accept-encoding": "identity"}
"""Headers of a client: a few compressed bytes may be very many, so a compressed reply is refused."""


class _BoundedStream(httpx2.AsyncByteStream, httpx2.SyncByteStream):
    """The bytes of another stream; reading more than `most` raises `httpx2.ReadError`."""

    def __init__(self, response: httpx2.Response, most: int) -> None:
        self._stream, self._request, self._left, self._most = response.stream, response.request, most, most

    def __iter__(self) -> Iterator[bytes]:
        assert isinstance(self._stream, httpx2.SyncByteStream), "a client that waits reads it"
        for part in self._stream:
            yield self._counted(part)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        assert isinstance(self._stream, httpx2.AsyncByteStream), "a client of the event loop reads it"
        async for part in self._stream:
            yield self._counted(part)

    def close(self) -> None:
        assert isinstance(self._stream, httpx2.SyncByteStream), "a client that waits reads it"
        self._stream.close()

    async def aclose(self) -> None:
        assert isinstance(self._stream, httpx2.AsyncByteStream), "a client of the event loop reads it"
        await self._stream.aclose()

    def _counted(self, part: bytes) -> bytes:
        self._left -= len(part)
        if self._left < 0:
            raise httpx2.ReadError(f"the reply has more than {self._most} bytes", request=self._request)
        return part


def hooks(most: int = MOST_BYTES) -> dict[str, list[Callable[..., Any]]]:
    """Return `event_hooks` of an `httpx2.Client`; a larger or compressed reply raises `httpx2.ReadError`."""
    return {"response": [lambda response: _bound(response, most)]}


def async_hooks(most: int = MOST_BYTES) -> dict[str, list[Callable[..., Any]]]:
    """Return `event_hooks` of an `httpx2.AsyncClient`, as `hooks`."""

    async def bound(response: httpx2.Response) -> None:
        _bound(response, most)

    return {"response": [bound]}


def post(url: str, document: Mapping[str, object], headers: Mapping[str, str] = PLAIN) -> None:
    """Post JSON to a webhook; raises `httpx2.HTTPError` where that does not take it."""
    with httpx2.Client(timeout=WEBHOOK_TIMEOUT_S, headers={**PLAIN, **headers}, event_hooks=hooks()) as http:
        http.post(url, json=document).raise_for_status()


def _bound(response: httpx2.Response, most: int) -> None:
    if (encoding := response.headers.get("content-encoding", "identity")) != "identity":
        raise httpx2.ReadError(
            f"the reply is encoded as {encoding[:40]!r}; asked for: identity", request=response.request
        )
    response.stream = _BoundedStream(response, most)
