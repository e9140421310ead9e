"""What do clients of a busy server see? Latencies, refusals and losses under a mix of good and bad clients.

Usage: python benchmarks/load.py URL [--requests 2000 | --duration 60] [--at-once 200] [--key KEY] [--json OUT]

Clients read whole answers, read streams, read them slowly, leave after the request, leave in the middle of a stream,
and stop in the middle of their upload. Only answers read at full speed count for latency. A request is lost where its
connection ends without an answer, and hangs where nothing comes for `--patience` seconds; both fail the run.
"""

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import cast

import httpx

from benchmarks.script import options
from prolepsis.lab.measure.provenance import provenance

PROMPTS = (
    "List the planets of the solar system.",
    "Write a haiku about rivers.",
    "Explain what a cache is. " * 12,
    "Copy this line: the quick brown fox jumps over the lazy dog.",
)
NUM_TOKENS = 32


@dataclass
class Seen:
    """What clients saw; times in seconds."""

    latency: list[float] = field(default_factory=list)
    first_chunk: list[float] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)
    left: int = 0
    """Clients that went away on purpose."""
    lost: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Target:
    http: httpx.AsyncClient
    model: str
    seen: Seen

    def body(self, i: int, **changes: object) -> dict[str, object]:
        messages = [{"role": "user", "content": PROMPTS[i % len(PROMPTS)]}]
        return {"model": self.model, "messages": messages, "max_tokens": NUM_TOKENS, "temperature": 0, **changes}


async def whole(target: Target, i: int) -> None:
    started = time.perf_counter()
    response = await target.http.post("/v1/chat/completions", json=target.body(i))
    target.seen.statuses[str(response.status_code)] += 1
    if response.status_code == 200:
        target.seen.latency.append(time.perf_counter() - started)


async def streamed(target: Target, i: int, *, pause_s: float = 0.0, leave: bool = False) -> None:
    started, last = time.perf_counter(), ""
    body = target.body(i, stream=True)
    async with target.http.stream("POST", "/v1/chat/completions", json=body) as response:
        target.seen.statuses[str(response.status_code)] += 1
        if response.status_code != 200:
            return
        is_waiting = not pause_s
        async for line in response.aiter_lines():
            if is_waiting and line.startswith("data: {") and '"role":"assistant","content":""' not in line:
                target.seen.first_chunk.append(time.perf_counter() - started)
                is_waiting = False
            last = line or last
            if leave:
                target.seen.left += 1
                return
            await asyncio.sleep(pause_s)
    if last != "data: [DONE]":
        target.seen.lost.append(f"stream ended with {last[:80]!r}")
    elif not pause_s:
        target.seen.latency.append(time.perf_counter() - started)


async def slow(target: Target, i: int) -> None:
    await streamed(target, i, pause_s=0.05)


async def leaves_in_stream(target: Target, i: int) -> None:
    await streamed(target, i, leave=True)


async def leaves_after_request(target: Target, i: int) -> None:
    try:
        await target.http.post("/v1/chat/completions", json=target.body(i, max_tokens=400), timeout=0.1)
    except httpx.ReadTimeout:
        target.seen.left += 1


async def leaves_in_upload(target: Target, i: int) -> None:
    url = target.http.base_url
    _, writer = await asyncio.open_connection(url.host, url.port or 80)
    sent = json.dumps(target.body(i)).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {url.netloc.decode()}\r\ncontent-length: {len(sent)}\r\n"
    key = target.http.headers.get("authorization")
    head += f"authorization: {key}\r\n\r\n" if key else "\r\n"
    writer.write(head.encode() + sent[: len(sent) // 2])
    await writer.drain()
    writer.close()
    target.seen.left += 1


Client = Callable[[Target, int], Awaitable[None]]
MIX: tuple[Client, ...] = (
    whole,
    streamed,
    slow,
    whole,
    leaves_in_stream,
    streamed,
    leaves_after_request,
    leaves_in_upload,
)


async def rush(target: Target, args: argparse.Namespace) -> float:
    """Run clients until the number or the time is reached; return the seconds it took."""
    started = time.perf_counter()
    numbers = iter(range(args.requests)) if args.duration is None else iter(range(10**9))

    async def worker() -> None:
        for i in numbers:
            if args.duration is not None and time.perf_counter() - started > args.duration:
                return
            try:
                async with asyncio.timeout(args.patience):
                    await MIX[i % len(MIX)](target, i)
            except (httpx.HTTPError, OSError) as error:
                target.seen.lost.append(f"{MIX[i % len(MIX)].__name__}: {error!r}"[:200])
            except TimeoutError:
                target.seen.lost.append(f"{MIX[i % len(MIX)].__name__}: nothing for {args.patience} s")

    async with asyncio.TaskGroup() as group:
        for _ in range(args.at_once):
            group.create_task(worker())
    return time.perf_counter() - started


def milliseconds(seconds: list[float]) -> dict[str, float] | None:
    if len(seconds) < 2:
        return None
    cuts = statistics.quantiles(seconds, n=100)
    return {"p50": round(cuts[49] * 1e3, 1), "p95": round(cuts[94] * 1e3, 1), "p99": round(cuts[98] * 1e3, 1)}


async def measure(args: argparse.Namespace) -> dict[str, object]:
    headers = {"authorization": f"Bearer {args.key}"} if args.key else {}
    limits = httpx.Limits(max_connections=args.at_once + 8)
    async with httpx.AsyncClient(base_url=args.url, headers=headers, limits=limits, timeout=args.patience) as http:
        models = (await http.get("/v1/models")).raise_for_status().json()
        target = Target(http, cast(str, models["data"][0]["id"]), Seen())
        seconds = await rush(target, args)
        for _ in range(100):  # clients that left are noticed within a step
            ready = (await http.get("/health/ready")).json()
            if not ready.get("num_running") and not ready.get("num_waiting"):
                break
            await asyncio.sleep(0.1)
        seen = target.seen
        return {
            "seconds": round(seconds, 2),
            "answers": len(seen.latency),
            "left_on_purpose": seen.left,
            "statuses": dict(seen.statuses),
            "lost": seen.lost,
            "latency_ms": milliseconds(seen.latency),
            "first_chunk_ms": milliseconds(seen.first_chunk),
            "at_the_end": {name: ready.get(name) for name in ("num_running", "num_waiting", "kv_usage")},
        }


def main() -> None:
    args = options(__doc__, "url", requests=2000, duration=float, at_once=200, patience=120.0, key=str)
    figures = asyncio.run(measure(args))
    print(json.dumps(figures, indent=2))
    if args.json:
        arguments = {name: value for name, value in vars(args).items() if name not in ("key", "json")}
        args.json.write_text(json.dumps({"figures": figures, "arguments": arguments, **provenance({}, {})}, indent=2))
    left_over = [value for value in cast(dict[str, object], figures["at_the_end"]).values() if value]
    sys.exit(1 if figures["lost"] or left_over else 0)


if __name__ == "__main__":
    main()
