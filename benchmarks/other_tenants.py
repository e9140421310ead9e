"""Does one client's request slow the others? Gaps between the tokens of one stream beside requests of another client.

Usage: python -m benchmarks.other_tenants URL [--rounds 3] [--key KEY] [--other-key KEY] [--json OUT]

One client reads a stream of 192 tokens. Meanwhile the other client repeats one request, by case: none, plain samples,
the same samples with the most biases and stop strings that are allowed, with the likeliest tokens shown, and with more
entries than are allowed, which is refused. Rounds visit every case once, so drift of the machine touches all alike.
Let the engine run more sequences than samples (`serve --max-requests 160`), so that both clients run at once.
"""

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import httpx

from prolepsis.cli.bench.provenance import provenance

NUM_TOKENS = 192
PROMPT = "Write about rivers, lakes and the sea."
BIASES, STOPS = 4096, ["".join(chr(97 + (i * j) % 26) for j in range(60)) for i in range(16)]
BIASED = {"logit_bias": {str(1000 + i): 1 for i in range(BIASES)}, "stop": STOPS}
TOO_MANY = {"logit_bias": {str(i): 1 for i in range(49_152)}, "stop": [f"stop {i}" for i in range(10_000)]}


def cases(samples: int) -> dict[str, Mapping[str, object] | None]:
    """Return what the other client asks for in each case."""
    plain: dict[str, object] = {"n": samples, "max_tokens": 64, "temperature": 1, "ignore_eos": True, "seed": 1}
    return {
        "alone": None,
        "plain": plain,
        f"{BIASES} biases, 16 stop strings": {**plain, **BIASED},
        "20 logprobs": {**plain, "logprobs": 20},
        "all of these": {**plain, **BIASED, "logprobs": 20},
        "49,152 biases, 10,000 stop strings": {**plain, **TOO_MANY},
    }


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


async def disturb(http: httpx.AsyncClient, body: bytes, key: str, statuses: list[int]) -> None:
    while True:
        reply = await http.post("/v1/completions", content=body, headers=signed(key))
        statuses.append(reply.status_code)


def signed(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"} if key else {}


async def measure(args: argparse.Namespace) -> dict[str, object]:
    found: dict[str, list[list[float]]] = {}
    statuses: dict[str, list[int]] = {}
    async with httpx.AsyncClient(base_url=args.url, timeout=600) as http:
        model = (await http.get("/v1/models", headers=signed(args.key))).json()["data"][0]["id"]
        for _ in range(args.rounds):
            for name, asked in cases(args.samples).items():
                if args.cases and name not in args.cases:
                    continue
                other = None
                if asked is not None:
                    body = json.dumps({"model": model, "prompt": PROMPT, **asked}).encode()
                    other = asyncio.create_task(disturb(http, body, args.other_key, statuses.setdefault(name, [])))
                    await asyncio.sleep(0.3)
                found.setdefault(name, []).append(await gaps(http, model, args.key))
                if other is not None:
                    other.cancel()
                    with suppress(asyncio.CancelledError):
                        await other
                    await asyncio.sleep(1.0)
    return {name: _summary(rounds, statuses.get(name, [])) for name, rounds in found.items()}


def _summary(rounds: list[list[float]], statuses: list[int]) -> dict[str, object]:
    """Milliseconds; worst gaps of the rounds from the least to the largest."""
    every = sorted(gap for one in rounds for gap in one)
    return {
        "median": round(1e3 * statistics.median(every), 1),
        "p99": round(1e3 * every[int(0.99 * len(every))], 1),
        "worst": [round(1e3 * max(one), 1) for one in sorted(rounds, key=max)],
        "other requests ended": len(statuses),
        "statuses": sorted(set(statuses)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--samples", type=int, default=128, help="samples of the other client's requests")
    parser.add_argument("--cases", nargs="*", help="only these, by name")
    parser.add_argument("--key", default="")
    parser.add_argument("--other-key", default="")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    result = {"provenance": provenance({}, {}), "gaps_ms": asyncio.run(measure(args))}
    print(json.dumps(result["gaps_ms"], indent=2))
    if args.json:
        args.json.write_text(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
