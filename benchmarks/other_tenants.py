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
from collections.abc import Mapping
from contextlib import suppress

import httpx

from benchmarks.stream_gaps import PROMPT, gaps, parser_of, report, signed, summary

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


async def disturb(http: httpx.AsyncClient, body: bytes, key: str, statuses: list[int]) -> None:
    while True:
        reply = await http.post("/v1/completions", content=body, headers=signed(key))
        statuses.append(reply.status_code)


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
    return {name: {**summary(rounds), **_ended(statuses.get(name, []))} for name, rounds in found.items()}


def _ended(statuses: list[int]) -> dict[str, object]:
    return {"other requests ended": len(statuses), "statuses": sorted(set(statuses))}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--samples", type=int, default=128, help="samples of the other client's requests")
    parser.add_argument("--cases", nargs="*", help="only these, by name")
    report(measure, parser.parse_args())


if __name__ == "__main__":
    main()
