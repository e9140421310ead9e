"""Gaps between the tokens of one client's stream, and how long its new requests wait, for benchmarks of floods."""

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path

import httpx

from prolepsis.lab.measure.provenance import provenance

NUM_TOKENS = 192
PROMPT = "Write about rivers, lakes and the sea."


async def gaps(http: httpx.AsyncClient, model: str, key: str) -> list[float]:
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
    async with httpx.AsyncClient(base_url=url, timeout=600) as http:
        began, first = time.perf_counter(), None
        async with http.stream("POST", "/v1/completions", json=body, headers=signed(key)) as reply:
            reply.raise_for_status()
            async for line in reply.aiter_lines():
                if line.startswith("data: {") and first is None:
                    first = time.perf_counter() - began
    assert first is not None, "the stream has a chunk"
    return first


def signed(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"} if key else {}


def summary(rounds: Sequence[Sequence[float]]) -> dict[str, object]:
    """Milliseconds; worst gaps of the rounds from the least to the largest."""
    every = sorted(gap for one in rounds for gap in one)
    return {
        "median": round(1e3 * statistics.median(every), 1),
        "p99": round(1e3 * every[int(0.99 * len(every))], 1),
        "worst": [round(1e3 * max(one), 1) for one in sorted(rounds, key=max)],
    }


def parser_of(usage: str | None) -> argparse.ArgumentParser:
    """Return a parser of the options that these benchmarks share."""
    parser = argparse.ArgumentParser(description=usage, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--key", default="", help="of the client whose stream is measured")
    parser.add_argument("--other-key", default="", help="of the other client")
    parser.add_argument("--json", type=Path)
    return parser


def report(
    measure: Callable[[argparse.Namespace], Coroutine[None, None, Mapping[str, object]]], args: argparse.Namespace
) -> None:
    """Measure, print the gaps, and write them with their provenance to the file that the options name."""
    result = {"provenance": provenance({}, {}), "gaps_ms": asyncio.run(measure(args))}
    print(json.dumps(result["gaps_ms"], indent=2))
    if args.json:
        args.json.write_text(json.dumps(result, indent=2))
