"""What does a flood of one client cost another? Gaps of its stream, and times until the first token of new requests.

Usage: python -m benchmarks.floods URL [--rounds 3] [--key KEY] [--other-key KEY] [--cases NAME ...] [--json OUT]

A process of its own floods the server with one kind of request, again and again: bodies with more biases and stop
strings than are allowed, the largest bodies, many small requests at once that are refused, bodies in parts of one byte,
long texts to tokenise, long lists of token ids. "busy" is a process that computes and asks nothing. In life such
clients have machines of their own, so these run at the lowest priority and take what server and stream leave of the
processor.
Rounds visit every case once, so drift of the machine touches all alike. `--key` is of the client whose stream is
measured, `--other-key` of the one that floods.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import statistics
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.synchronize import Event

import httpx2

from benchmarks.script import keep, options, signed
from prolepsis.control.web.intake import body_limit

TOO_MANY = {"logit_bias": {str(i): 1 for i in range(49_152)}, "stop": [f"stop {i}" for i in range(10_000)]}
MANY_AT_ONCE = 500
NEW_REQUESTS = 8
NUM_TOKENS = 192
PROMPT = "Write about rivers, lakes and the sea."


@dataclass(frozen=True, slots=True)
class Target:
    url: str
    key: str
    model: str
    max_model_len: int

    def head(self, path: str, *more: str) -> bytes:
        lines = [f"POST {path} HTTP/1.1", "host: localhost", "content-type: application/json", *more]
        lines += [f"authorization: Bearer {self.key}"] if self.key else []
        return ("\r\n".join(lines) + "\r\n\r\n").encode()


Outcomes = Counter[str]


async def _post(target: Target, path: str, body: bytes, at_once: int, outcomes: Outcomes) -> None:
    limits = httpx2.Limits(max_connections=at_once)
    async with httpx2.AsyncClient(base_url=target.url, timeout=600, limits=limits) as http:

        async def one() -> None:
            while True:
                try:
                    reply = await http.post(path, content=body, headers=signed(target.key))
                    outcomes[str(reply.status_code)] += 1
                except httpx2.HTTPError as error:  # refused before its end, and closed
                    outcomes[type(error).__name__] += 1

        await asyncio.gather(*(one() for _ in range(at_once)))


async def too_many_entries(target: Target, outcomes: Outcomes) -> None:
    body = json.dumps({"model": target.model, "prompt": "Hi", "n": 128, **TOO_MANY}).encode()
    await _post(target, "/v1/completions", body, 4, outcomes)


async def largest_bodies(target: Target, outcomes: Outcomes) -> None:
    """Unknown fields, the slowest JSON to read."""
    size = body_limit(target.max_model_len) - 1024
    fields = ",".join(f'"k{i:06d}":1' for i in range(size // 12))
    await _post(target, "/v1/completions", f'{{"model":"x",{fields}}}'.encode(), 4, outcomes)


async def long_conversations(target: Target, outcomes: Outcomes) -> None:
    messages = [{"role": "user", "content": "x" * 100}] * 2000
    body = json.dumps({"model": target.model, "messages": messages}).encode()
    await _post(target, "/v1/chat/completions", body, 4, outcomes)


async def long_texts(target: Target, outcomes: Outcomes) -> None:
    text = "rivers and lakes " * ((body_limit(target.max_model_len) - 1024) // 17)
    await _post(target, "/tokenize", json.dumps({"prompt": text}).encode(), 4, outcomes)


async def token_ids(target: Target, outcomes: Outcomes) -> None:
    """As many as fit the largest body."""
    ids = ",".join("1" for _ in range((body_limit(target.max_model_len) - 1024) // 2))
    await _post(target, "/detokenize", f'{{"tokens":[{ids}]}}'.encode(), 4, outcomes)


async def many_small(max_tokens: int, target: Target, outcomes: Outcomes) -> None:
    options = {"max_tokens": max_tokens, "ignore_eos": True}
    body = json.dumps({"model": target.model, "prompt": "Hi", **options}).encode()
    await _post(target, "/v1/completions", body, MANY_AT_ONCE, outcomes)


async def tiny_parts(target: Target, outcomes: Outcomes) -> None:
    url = httpx2.URL(target.url)
    parts = b"1\r\n \r\n" * 40_000

    async def one() -> None:
        while True:
            with suppress(OSError):
                reader, writer = await asyncio.open_connection(url.host, url.port or 80)
                writer.write(target.head("/v1/completions", "transfer-encoding: chunked") + parts + b"0\r\n\r\n")
                reply = await reader.read(12)
                outcomes[reply[9:].decode()] += 1
                writer.close()

    await asyncio.gather(*(one() for _ in range(4)))


async def busy(target: Target, outcomes: Outcomes) -> None:
    while True:
        outcomes["millions"] += 1
        sum(range(1_000_000))
        await asyncio.sleep(0)


Flood = Callable[[Target, Outcomes], Coroutine[None, None, None]]
FLOODS: dict[str, Flood | None] = {
    "alone": None,
    "busy": busy,
    "49,152 biases, 10,000 stop strings": too_many_entries,
    "largest bodies": largest_bodies,
    "long conversations": long_conversations,
    "long texts": long_texts,
    "token ids": token_ids,
    f"{MANY_AT_ONCE} refused at once": partial(many_small, -1),
    f"{MANY_AT_ONCE} of 1 token at once": partial(many_small, 1),
    f"{MANY_AT_ONCE} of 16 tokens at once": partial(many_small, 16),
    f"{MANY_AT_ONCE} of 512 tokens at once": partial(many_small, 512),
    "tiny parts": tiny_parts,
}


def flood(name: str, target: Target, stop: Event, found: "multiprocessing.Queue[Outcomes]") -> None:
    """Flood until told to stop, or until the process is ended."""
    work, outcomes = FLOODS[name], Outcomes()
    assert work is not None
    os.nice(19)

    async def until_stopped() -> None:
        flooding = asyncio.create_task(work(target, outcomes))
        await asyncio.to_thread(stop.wait)
        flooding.cancel()
        with suppress(asyncio.CancelledError):
            await flooding

    asyncio.run(until_stopped())
    found.put(outcomes)


@dataclass
class Seen:
    """Of one case: a round's gaps, and its times until the first token, in each item."""

    gaps: list[list[float]] = field(default_factory=list)
    first: list[list[float]] = field(default_factory=list)
    outcomes: Outcomes = field(default_factory=Outcomes)


async def gaps(http: httpx2.AsyncClient, model: str, key: str) -> list[float]:
    """Return the seconds between the chunks of one stream, the first included."""
    body = {"model": model, "prompt": PROMPT, "max_tokens": NUM_TOKENS, "stream": True, "ignore_eos": True}
    found, last = [], time.perf_counter()
    options = {"temperature": 0, "speculation": {"mode": "off"}}
    async with http.stream("POST", "/v1/completions", json=body | options, headers=signed(key)) as reply:
        reply.raise_for_status()
        async for line in reply.aiter_lines():
            if line.startswith("data: {"):
                now = time.perf_counter()
                found.append(now - last)
                last = now
    return found[1:]


async def first_token_s(url: str, model: str, key: str) -> float:
    """Return the seconds from a new connection to the first chunk of its stream, which is read to its end."""
    body = {"model": model, "prompt": PROMPT, "max_tokens": 2, "stream": True, "ignore_eos": True, "temperature": 0}
    async with httpx2.AsyncClient(base_url=url, timeout=600) as http:
        began, first = time.perf_counter(), None
        async with http.stream("POST", "/v1/completions", json=body, headers=signed(key)) as reply:
            reply.raise_for_status()
            async for line in reply.aiter_lines():
                if line.startswith("data: {") and first is None:
                    first = time.perf_counter() - began
    assert first is not None, "the stream has a chunk"
    return first


def summary(rounds: Sequence[Sequence[float]]) -> dict[str, object]:
    """Milliseconds; worst gaps of the rounds from the least to the largest."""
    every = sorted(gap for one in rounds for gap in one)
    return {
        "median": round(1e3 * statistics.median(every), 1),
        "p99": round(1e3 * every[int(0.99 * len(every))], 1),
        "worst": [round(1e3 * max(one), 1) for one in sorted(rounds, key=max)],
    }


async def measure(args: argparse.Namespace) -> dict[str, object]:
    async with httpx2.AsyncClient(base_url=args.url, timeout=600) as http:
        listed = (await http.get("/v1/models", headers=signed(args.key))).raise_for_status().json()
        model = listed["data"][0]["id"]
        asked = await http.post("/tokenize", json={"prompt": "Hi", "model": model}, headers=signed(args.key))
        target = Target(args.url, args.other_key, model, asked.raise_for_status().json()["max_model_len"])
        cases = {name: Seen() for name in args.cases}
        for _ in range(args.rounds):
            for name, seen in cases.items():
                await _beside(name, target, seen, partial(_ask, http, model, args.key, seen))
    return {
        name: {"gaps": summary(seen.gaps), "first token": summary(seen.first), "outcomes": dict(seen.outcomes)}
        for name, seen in cases.items()
    }


async def _ask(http: httpx2.AsyncClient, model: str, key: str, seen: Seen) -> None:
    seen.gaps.append(await gaps(http, model, key))
    seen.first.append([await first_token_s(str(http.base_url), model, key) for _ in range(NEW_REQUESTS)])


async def _beside(name: str, target: Target, seen: Seen, ask: Callable[[], Coroutine[None, None, None]]) -> None:
    """Ask beside a flood, and count what became of the flood's requests."""
    if FLOODS[name] is None:
        return await ask()
    context = multiprocessing.get_context("spawn")
    found: multiprocessing.Queue[Outcomes] = context.Queue()
    stop = context.Event()
    process = context.Process(target=flood, args=(name, target, stop, found), daemon=True)
    process.start()
    await asyncio.sleep(2.0)  # it imports, connects and begins
    try:
        await ask()
        stop.set()
        seen.outcomes.update(await asyncio.to_thread(_first, found))
    finally:
        process.kill()
        process.join()
        await asyncio.sleep(1.0)


def _first(found: "multiprocessing.Queue[Outcomes]") -> Outcomes:
    with suppress(Exception):  # a flood that never yields has nothing to say
        return found.get(timeout=8.0)
    return Outcomes()


def main() -> None:
    args = options(__doc__, "url", rounds=3, key="", other_key="", cases=list(FLOODS))
    found = asyncio.run(measure(args))
    print(json.dumps(found, indent=2))
    keep(args, gaps_ms=found)


if __name__ == "__main__":
    main()
