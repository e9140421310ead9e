"""Clients as they come: patient, slow, gone in every phase, and those that stop in the middle of their upload."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

PROMPTS = ("bcdefgh" * 4, "banana", "the cat sat on the mat " * 6, "w" * 40, "fedcb")
NUM_TOKENS = 24


@dataclass
class Outcome:
    """What the clients of a run saw."""

    statuses: list[int] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    """Seconds of whole answers and streams that were read at full speed."""
    answers: dict[str, set[str]] = field(default_factory=dict)
    """Texts seen for each prompt."""

    def saw(self, prompt: str, text: str) -> None:
        self.answers.setdefault(prompt, set()).add(text)


@dataclass(frozen=True)
class Target:
    port: int
    outcome: Outcome
    model: str = "table"


def body(target: Target, prompt: str, **changes: object) -> bytes:
    fields = {"model": target.model, "prompt": prompt, "max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True}
    return json.dumps(fields | changes).encode()


def head(length: int, *extra: str) -> bytes:
    lines = [
        "POST /v1/completions HTTP/1.1",
        "host: localhost",
        "connection: close",
        f"content-length: {length}",
        *extra,
    ]
    return ("\r\n".join([*lines, "", ""])).encode()


@asynccontextmanager
async def connected(target: Target) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def reply(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Read to the end of the connection; return status and body (its chunks joined)."""
    status = int((await reader.readuntil(b"\r\n")).split()[1])
    headers = (await reader.readuntil(b"\r\n\r\n")).lower()
    if b"transfer-encoding: chunked" not in headers:
        return status, await reader.read()
    parts = []
    while size := int((await reader.readuntil(b"\r\n")).strip(), 16):
        parts.append((await reader.readexactly(size + 2))[:-2])
    return status, b"".join(parts)


async def whole(target: Target, prompt: str) -> None:
    started = time.perf_counter()
    async with connected(target) as (reader, writer):
        sent = body(target, prompt)
        writer.write(head(len(sent)) + sent)
        status, answer = await reply(reader)
    target.outcome.statuses.append(status)
    if status == 200:
        target.outcome.latencies.append(time.perf_counter() - started)
        target.outcome.saw(prompt, json.loads(answer)["choices"][0]["text"])


async def streamed(target: Target, prompt: str, pause_s: float = 0.0) -> None:
    started = time.perf_counter()
    async with connected(target) as (reader, writer):
        sent = body(target, prompt, stream=True)
        writer.write(head(len(sent)) + sent)
        if pause_s:
            head_part = await reader.readexactly(20)
            reader_status = int(head_part.split()[1])
            while data := await reader.read(64):
                assert data
                await asyncio.sleep(pause_s)
            target.outcome.statuses.append(reader_status)
            return
        status, answer = await reply(reader)
    target.outcome.statuses.append(status)
    if status == 200:
        target.outcome.latencies.append(time.perf_counter() - started)
        events = [line.removeprefix("data: ") for line in answer.decode().split("\n\n") if line.startswith("data: ")]
        assert events[-1] == "[DONE]", events[-1]
        chunks = [json.loads(event)["choices"][0] for event in events[:-1]]
        assert [chunk["finish_reason"] for chunk in chunks if chunk["finish_reason"]] == ["length"]
        target.outcome.saw(prompt, "".join(chunk["text"] for chunk in chunks))


async def slow(target: Target, prompt: str) -> None:
    await streamed(target, prompt, pause_s=0.01)


async def gone_after_request(target: Target, prompt: str) -> None:
    async with connected(target) as (_, writer):
        sent = body(target, prompt, max_tokens=300)
        writer.write(head(len(sent)) + sent)
        await writer.drain()


async def gone_while_it_runs(target: Target, prompt: str) -> None:
    async with connected(target) as (_, writer):
        sent = body(target, prompt, max_tokens=300)
        writer.write(head(len(sent)) + sent)
        await asyncio.sleep(0.05)


async def gone_after_first_chunk(target: Target, prompt: str) -> None:
    async with connected(target) as (reader, writer):
        sent = body(target, prompt, stream=True, max_tokens=300)
        writer.write(head(len(sent)) + sent)
        await reader.readuntil(b"\r\n\r\n")
        with suppress(asyncio.IncompleteReadError):
            await reader.readuntil(b"data: ")


async def gone_in_upload(target: Target, prompt: str) -> None:
    async with connected(target) as (_, writer):
        sent = body(target, prompt)
        writer.write(head(len(sent)) + sent[: len(sent) // 2])
        await asyncio.sleep(0.02)


async def gone_in_headers(target: Target, _: str) -> None:
    async with connected(target) as (_reader, writer):
        writer.write(head(100)[:40])
        await asyncio.sleep(0.02)


async def refused(target: Target, prompt: str) -> None:
    async with connected(target) as (reader, writer):
        sent = body(target, prompt, temperature="hot")
        writer.write(head(len(sent)) + sent)
        status, _ = await reply(reader)
    assert status == 400


async def hurried(target: Target, prompt: str) -> None:
    async with connected(target) as (reader, writer):
        sent = body(target, prompt, max_tokens=300)
        writer.write(head(len(sent), "x-request-timeout-ms: 5") + sent)
        status, _ = await reply(reader)
    assert status == 504


async def several_samples(target: Target, prompt: str) -> None:
    async with connected(target) as (reader, writer):
        sent = body(target, prompt, n=3, temperature=1, seed=7)
        writer.write(head(len(sent)) + sent)
        status, answer = await reply(reader)
    target.outcome.statuses.append(status)
    if status == 200:
        assert len(json.loads(answer)["choices"]) == 3


Client = Callable[[Target, str], Awaitable[None]]
MIX: tuple[Client, ...] = (
    whole,
    streamed,
    slow,
    gone_after_request,
    whole,
    gone_while_it_runs,
    gone_after_first_chunk,
    gone_in_upload,
    streamed,
    gone_in_headers,
    refused,
    hurried,
    several_samples,
)


async def rush(target: Target, number: int, at_once: int) -> None:
    """Run `number` clients of the mix, `at_once` of them at a time; whatever one asserts fails here."""
    slots = asyncio.Semaphore(at_once)

    async def one(i: int) -> None:
        async with slots, asyncio.timeout(120):
            await MIX[i % len(MIX)](target, PROMPTS[i % len(PROMPTS)])

    async with asyncio.TaskGroup() as group:
        for i in range(number):
            group.create_task(one(i))
