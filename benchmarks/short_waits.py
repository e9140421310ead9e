"""How long do short requests of two tenants take beside a third one's large requests and a fourth one's long stream?

Usage: python -m benchmarks.short_waits URL [--rounds 3] [--samples 128] [--keys A,B,C,D] [--json OUT]

A and B repeat a request of 8 tokens, one after the other, each for some seconds: alone, then while C repeats a request
of many samples of 4 tokens each and D reads a stream of 6,000 tokens. The ratio of the worst waits is what C and D cost
them. Without keys all four are one tenant, which is another question.
"""

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import httpx

from benchmarks.stream_gaps import PROMPT, parser_of, report, signed

SHORT, STREAM = 8, 6000
SECONDS = 8.0


async def waits(http: httpx.AsyncClient, model: str, key: str, until: float) -> list[float]:
    """Return the seconds that each short request took, from its sending to the end of its answer."""
    found = []
    body = {"model": model, "prompt": PROMPT, "max_tokens": SHORT, "temperature": 0, "ignore_eos": True}
    while time.perf_counter() < until:
        began = time.perf_counter()
        (await http.post("/v1/completions", json=body, headers=signed(key))).raise_for_status()
        found.append(time.perf_counter() - began)
    return found


async def sample(http: httpx.AsyncClient, model: str, key: str, samples: int, ended: list[float]) -> None:
    body = {"model": model, "prompt": PROMPT, "max_tokens": 4, "temperature": 1, "n": samples, "ignore_eos": True}
    while True:
        began = time.perf_counter()
        (await http.post("/v1/completions", json=body, headers=signed(key))).raise_for_status()
        ended.append(time.perf_counter() - began)


async def stream(http: httpx.AsyncClient, model: str, key: str) -> None:
    body = {"model": model, "prompt": PROMPT, "max_tokens": STREAM, "ignore_eos": True, "stream": True}
    while True:
        async with http.stream("POST", "/v1/completions", json=body, headers=signed(key)) as reply:
            reply.raise_for_status()
            async for _ in reply.aiter_lines():
                pass


async def both(http: httpx.AsyncClient, model: str, keys: Sequence[str]) -> list[float]:
    until = time.perf_counter() + SECONDS
    found = await asyncio.gather(*(waits(http, model, key, until) for key in keys[:2]))
    return [seconds for one in found for seconds in one]


async def beside(work: Sequence[Awaitable[None]], measured: Callable[[], Awaitable[list[float]]]) -> list[float]:
    tasks = [asyncio.ensure_future(one) for one in work]
    await asyncio.sleep(1.0)
    try:
        return await measured()
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task


async def measure(args: argparse.Namespace) -> dict[str, object]:
    keys = args.keys.split(",") if args.keys else [""] * 4
    alone, with_others, large = [list[float]() for _ in range(3)]
    async with httpx.AsyncClient(base_url=args.url, timeout=600) as http:
        model = (await http.get("/v1/models", headers=signed(keys[0]))).json()["data"][0]["id"]
        for _ in range(args.rounds):
            alone += await both(http, model, keys)
            others = sample(http, model, keys[2], args.samples, large), stream(http, model, keys[3])
            with_others += await beside(others, lambda: both(http, model, keys))
            await asyncio.sleep(1.0)
    return {
        "alone": _figures(alone),
        "beside": _figures(with_others),
        "worst, ratio": round(max(with_others) / max(alone), 2),
        "large requests": _figures(large),
    }


def _figures(seconds: Sequence[float]) -> dict[str, float]:
    every = sorted(seconds) or [0.0]
    return {
        "number": len(seconds),
        "median": round(1e3 * every[len(every) // 2], 1),
        "p95": round(1e3 * every[int(0.95 * len(every))], 1),
        "worst": round(1e3 * every[-1], 1),
    }


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--samples", type=int, default=128)
    parser.add_argument("--keys", help="of the four clients, with commas")
    report(measure, parser.parse_args())


if __name__ == "__main__":
    main()
