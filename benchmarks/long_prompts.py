"""What do long prompts cost streams? Gaps between the tokens of short answers, alone and next to prompts that are read.

Usage: python -m benchmarks.long_prompts URL [--streams 12] [--prompts 4] [--prompt-tokens 3300] [--rounds 3]
[--key KEY] [--other-key KEY] [--json OUT]

The streams are read to their ends alone, then while long prompts are sent and answered with one token. Gaps count until
the last prompt is read. `ratio` is the mean gap next to prompts over the mean gap alone. Of the prompts `first token`
is reported, and of a short prompt that is sent behind them. Compare servers with `--chunk-limit-ms 0` and without.
"""

import argparse
import asyncio
import itertools
import random
import statistics
import time
from collections.abc import Sequence

import httpx

from benchmarks.stream_gaps import parser_of, report, signed

WORDS = ("river", "stone", "cloud", "paper", "engine", "garden", "winter", "signal")
OPTIONS = {"temperature": 0, "ignore_eos": True, "stream": True, "speculation": {"mode": "off"}}
_serial = itertools.count(int(time.time()))


def text(num_words: int) -> str:
    """Return a text that no earlier one begins with; each word is about a token."""
    serial = next(_serial)
    drawn = random.Random(serial)
    return f"{serial}: {' '.join(drawn.choice(WORDS) for _ in range(num_words))}"


async def times(
    http: httpx.AsyncClient, args: argparse.Namespace, prompt: str, num_tokens: int, key: str
) -> list[float]:
    """Return when the request was sent and when each chunk of its stream came."""
    body = {"model": args.model, "prompt": prompt, "max_tokens": num_tokens, **OPTIONS}
    found = [time.perf_counter()]
    async with http.stream("POST", "/v1/completions", json=body, headers=signed(key)) as reply:
        reply.raise_for_status()
        async for line in reply.aiter_lines():
            if line.startswith("data: {"):
                found.append(time.perf_counter())
    return found


async def streams(http: httpx.AsyncClient, args: argparse.Namespace) -> list[list[float]]:
    """Return the times of all streams."""
    asked = [times(http, args, text(20), args.tokens, args.key) for _ in range(args.streams)]
    return list(await asyncio.gather(*asked))


async def prompts(http: httpx.AsyncClient, args: argparse.Namespace) -> tuple[list[float], float]:
    """Return the seconds until the first token of the long prompts, and of a short one sent a second later."""
    asked = [times(http, args, text(args.prompt_tokens), 1, args.other_key) for _ in range(args.prompts)]
    reading = asyncio.gather(*asked)
    await asyncio.sleep(1.0)
    short = await times(http, args, text(20), 1, args.other_key)
    return sorted(first - sent for sent, first, *_ in await reading), short[1] - short[0]


def gaps_of(found: Sequence[Sequence[float]], since: float = 0.0, until: float = float("inf")) -> list[float]:
    """Return the seconds between two chunks that came in this time, of all streams."""
    return [
        after - before
        for _, *came in found
        for before, after in itertools.pairwise(came)
        if since <= before and after <= until
    ]


async def measure(args: argparse.Namespace) -> dict[str, object]:
    alone: list[float] = []
    beside: list[float] = []
    firsts: list[list[float]] = []
    shorts: list[float] = []
    async with httpx.AsyncClient(base_url=args.url, timeout=3600, limits=httpx.Limits(max_connections=None)) as http:
        args.model = (await http.get("/v1/models", headers=signed(args.key))).json()["data"][0]["id"]
        await times(http, args, text(600), 1, args.key)  # warm
        for _ in range(args.rounds):
            alone += gaps_of(await streams(http, args))
            running = asyncio.create_task(streams(http, args))
            await asyncio.sleep(1.0)
            since = time.perf_counter()
            first, short = await prompts(http, args)
            until = time.perf_counter()
            beside += gaps_of(await running, since, until)
            firsts.append(first)
            shorts.append(short)
    return {
        "alone": _summary(alone),
        "next to prompts": _summary(beside),
        "ratio": round(statistics.mean(beside) / statistics.mean(alone), 2),
        "first token of the prompts": [[round(1e3 * one) for one in first] for first in firsts],
        "first token of a short prompt": [round(1e3 * one) for one in shorts],
    }


def _summary(gaps: list[float]) -> dict[str, float]:
    """Milliseconds."""
    if not gaps:
        raise SystemExit("no gap was measured: the streams ended before the prompts were read; give --tokens more")
    ranked = sorted(gaps)
    return {
        "gaps": len(gaps),
        "mean": round(1e3 * statistics.mean(gaps), 1),
        "p99": round(1e3 * ranked[int(0.99 * len(gaps))], 1),
        "worst": round(1e3 * ranked[-1], 1),
    }


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--streams", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=48, help="of each stream")
    parser.add_argument("--prompts", type=int, default=4, help="long ones, sent at once")
    parser.add_argument("--prompt-tokens", type=int, default=3300, help="of each, about")
    report(measure, parser.parse_args())


if __name__ == "__main__":
    main()
