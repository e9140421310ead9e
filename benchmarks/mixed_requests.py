"""Does a random mix of requests end the engine, or change an answer? Each is asked again without speculation.

Usage: python -m benchmarks.mixed_requests URL [--requests 1600] [--at-once 8] [--seed 0] [--key KEY] [--json OUT]

Requests draw their prompt, mode, samples (up to 128), log-probabilities, temperature, penalties and length; some are
streams that their client leaves. The reply is compared with the reply to the same request in mode off: text and
log-probabilities of every sample. The engine's restarts, the
faults that were contained and readiness are read at the end. Exits 1 where anything failed or differed.
"""

import argparse
import asyncio
import json
import random
import re
from collections import Counter
from importlib import resources
from typing import Any

import httpx

from benchmarks.script import keep, options
from benchmarks.stream_gaps import signed

WATCHED = ("prolepsis_engine_restarts_total", "prolepsis_contained_faults_total", "prolepsis_requests_failing")
MODES = ("", "", "auto", "always")
"""Empty: none is named, as by most clients."""
Body = dict[str, Any]


def drawn(draw: random.Random, prompts: list[str]) -> Body:
    """Return the body of a request, without its model and mode."""
    samples = draw.choice([1, 1, 1, 2, 8, 32, 128])
    length = draw.choice([1, 4, 16, 48]) if samples < 32 else draw.choice([1, 2, 4])
    body: Body = {
        "prompt": draw.choice(prompts)[: draw.choice([40, 200, 2000])],
        "n": samples,
        "max_tokens": length,
        "temperature": draw.choice([0, 0, 0.8, 1.3]),
        "seed": draw.randrange(1000),
        "ignore_eos": draw.random() < 0.5,
    }
    if draw.random() < 0.4:
        body["logprobs"] = draw.choice([0, 1, 5, 20])
    if draw.random() < 0.2:
        body |= {"frequency_penalty": 0.5, "presence_penalty": 0.2}
    if draw.random() < 0.2:
        body["stop"] = ["\n", " the"]
    return body


async def answered(http: httpx.AsyncClient, body: Body, key: str) -> tuple[int, Any]:
    reply = await http.post("/v1/completions", json=body, headers=signed(key))
    return reply.status_code, reply.json()["choices"] if reply.status_code == 200 else reply.text


async def left(http: httpx.AsyncClient, body: Body, key: str) -> None:
    """Ask for a stream, and go away after its first event."""
    async with http.stream("POST", "/v1/completions", json={**body, "stream": True}, headers=signed(key)) as reply:
        async for _ in reply.aiter_lines():
            return


async def measure(args: argparse.Namespace) -> dict[str, Any]:
    draw, ends, places = random.Random(args.seed), Counter[str](), asyncio.Semaphore(args.at_once)
    prompts = [json.loads(line)["prompt"] for line in _prompts().splitlines()]
    different: list[Body] = []
    async with httpx.AsyncClient(base_url=args.url, timeout=1200) as http:
        model = (await http.get("/v1/models", headers=signed(args.key))).json()["data"][0]["id"]

        async def one(body: Body, mode: str, leaves: bool) -> None:
            async with places:
                plain: Body = {**body, "model": model, "speculation": {"mode": "off"}}
                mixed: Body = {**plain, "speculation": {"mode": mode}} if mode else {**body, "model": model}
                if leaves:
                    await left(http, mixed, args.key)
                    ends["left"] += 1
                    return
                (status, found), (_, expected) = await asyncio.gather(
                    answered(http, mixed, args.key), answered(http, plain, args.key)
                )
                ends[str(status)] += 1
                if found != expected:
                    different.append(mixed)

        asked = [(drawn(draw, prompts), draw.choice(MODES), draw.random() < 0.1) for _ in range(args.requests)]
        await asyncio.gather(*(one(*each) for each in asked))
        figures = (await http.get("/metrics", headers=signed(args.key))).text
        ready = (await http.get("/health/ready", headers=signed(args.key))).status_code
    watched = {name: sum(map(float, re.findall(rf"^{name}(?:{{.*}})? (\S+)$", figures, re.M))) for name in WATCHED}
    return {"ends": dict(ends), "different": len(different), "examples": different[:3], "ready": ready, **watched}


def _prompts() -> str:
    return (resources.files("prolepsis.lab.measure") / "prompts.jsonl").read_text(encoding="utf-8")


def main() -> None:
    args = options(__doc__, "url", requests=1600, at_once=8, seed=0, key="")
    found = asyncio.run(measure(args))
    print(json.dumps(found, indent=2))
    keep(args, **found)
    is_sound = found["ready"] == 200 and not any(found[name] for name in ("different", *WATCHED))
    raise SystemExit(0 if is_sound and set(found["ends"]) <= {"200", "left"} else 1)


if __name__ == "__main__":
    main()
