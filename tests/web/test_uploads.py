import asyncio

import pytest
from starlette.requests import Request
from starlette.types import Message

from prolepsis.web.refusals import Refused
from prolepsis.web.uploads import BODIES_OF_TENANT, Uploads, body_limit

SIZE = 100


def request(*chunks: int) -> Request:
    parts = [b"x" * size for size in chunks]
    messages = [{"type": "http.request", "body": part, "more_body": i < len(parts) - 1} for i, part in enumerate(parts)]

    async def receive() -> Message:
        return messages.pop(0)

    return Request({"type": "http", "headers": [], "state": {}}, receive)


async def test_a_body_is_read_up_to_its_size() -> None:
    uploads = Uploads(SIZE)
    async with uploads.read(request(60, 0, 40), "acme") as raw:
        assert len(raw) == SIZE
    with pytest.raises(Refused) as refused:
        async with uploads.read(request(60, 41), "acme"):
            pass
    assert (refused.value.status, refused.value.reason) == (413, "body_too_large")


async def test_one_tenant_that_fills_the_room_is_refused_and_no_other() -> None:
    uploads, done, begun = Uploads(SIZE), asyncio.Event(), asyncio.Semaphore(0)

    async def hold() -> None:
        async with uploads.read(request(SIZE), "acme"):
            begun.release()
            await done.wait()

    async with asyncio.TaskGroup() as group:
        for _ in range(BODIES_OF_TENANT):
            group.create_task(hold())
        for _ in range(BODIES_OF_TENANT):
            await begun.acquire()
        with pytest.raises(Refused) as refused:
            async with uploads.read(request(1), "acme"):
                pass
        async with uploads.read(request(SIZE), "other") as raw:
            assert len(raw) == SIZE
        done.set()
    assert (refused.value.status, refused.value.code) == (429, "too_many_uploads")
    assert "retry-after" in refused.value.headers
    async with uploads.read(request(SIZE), "acme") as raw:
        assert len(raw) == SIZE


def test_the_default_size_grows_with_the_context() -> None:
    assert body_limit(8192) == (256 + 128) * 1024
    assert body_limit(131072) == (256 + 2048) * 1024
