"""What do clients notice when a replica is killed while it streams? Outputs compared, and the added pause.

Usage: python -m benchmarks.replica_loss URL [--streams 48] [--rounds 20] [--tokens 64] [--json OUT]

URL is of `prolepsis serve --replicas N` on this machine. The requests are of six kinds, with fixed seeds: greedy,
sampled, a JSON schema, a tool call, two samples, and penalties. They are answered once undisturbed; then, in each
round, one replica is killed (SIGKILL) when every stream has begun, and each output is compared with the undisturbed
one. A round begins when all replicas are there again. Told are outputs that differ, requests that failed, and the
longest gap of each stream less the longest of its undisturbed run.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx

from prolepsis.cli.bench.provenance import provenance
from tests.ray.processes import replica_processes

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 40}, "people": {"type": "integer"}},
    "required": ["city", "people"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA}}
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": SCHEMA}}
QUESTIONS = ("Tell a story about a river.", "Describe a large city and how many people live in it.", "What is a cache?")
WAIT_S = 180.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What one stream said, by choice, and its longest gap between two chunks."""

    texts: Mapping[int, str]
    ends: Mapping[int, str]
    longest_gap_s: float


@dataclass(frozen=True, slots=True)
class Round:
    num_different: int
    num_failed: int
    added_pauses_s: Sequence[float]


def bodies(number: int, tokens: int) -> list[dict[str, object]]:
    """Return the requests, each kind in turn."""
    kinds: list[dict[str, object]] = [
        {"temperature": 0},
        {"temperature": 0.9},
        {
            "temperature": 0.7,
            "response_format": {"type": "json_schema", "json_schema": {"name": "c", "schema": SCHEMA}},
        },
        {"temperature": 0.7, "tools": [TOOL], "tool_choice": "required"},
        {"temperature": 0.8, "n": 2},
        {"temperature": 0.8, "frequency_penalty": 0.7, "presence_penalty": 0.3},
    ]
    return [
        {
            "model": "smollm2-135m-instruct",
            "messages": [{"role": "user", "content": QUESTIONS[i % len(QUESTIONS)]}],
            "max_tokens": tokens,
            "seed": i,
            "stream": True,
            **kinds[i % len(kinds)],
        }
        for i in range(number)
    ]


async def ask(client: httpx.AsyncClient, body: dict[str, object], begun: asyncio.Semaphore) -> Answer | None:
    """Return an answer, or None if the stream did not end as it should; `begun` is released at its first chunk."""
    texts: dict[int, str] = {}
    ends: dict[int, str] = {}
    gap, last, done = 0.0, 0.0, False
    try:
        async with client.stream("POST", "/v1/chat/completions", json=body) as reply:
            reply.raise_for_status()
            async for line in reply.aiter_lines():
                if not line.startswith("data:"):
                    continue
                if not last:
                    begun.release()
                now = time.monotonic()
                gap, last = max(gap, now - (last or now)), now
                if line == "data: [DONE]":
                    done = True
                    break
                for choice in json.loads(line.removeprefix("data:")).get("choices", ()):
                    delta = choice["delta"]
                    said = (delta.get("content") or "") + _call(delta)
                    texts[choice["index"]] = texts.get(choice["index"], "") + said
                    if choice["finish_reason"]:
                        ends[choice["index"]] = choice["finish_reason"]
    except httpx.HTTPError as error:
        print(f"failed: {error!r}", file=sys.stderr)
        return None
    finally:
        if not last:
            begun.release()
    return Answer(texts, ends, gap) if done and ends else None


def _call(delta: Mapping[str, object]) -> str:
    calls = delta.get("tool_calls")
    if not isinstance(calls, list):
        return ""
    return "".join((call["function"].get("name") or "") + (call["function"].get("arguments") or "") for call in calls)


async def all_answers(url: str, asked: Sequence[dict[str, object]], *, kill: bool) -> list[Answer | None]:
    """Answer all at once; with `kill`, one replica is killed when every stream has begun."""
    begun = asyncio.Semaphore(0)
    limits = httpx.Limits(max_connections=len(asked))
    async with httpx.AsyncClient(base_url=url, timeout=WAIT_S, limits=limits) as client:
        answers = [asyncio.create_task(ask(client, body, begun)) for body in asked]
        for _ in asked:
            await begun.acquire()
        if kill:
            os.kill(random.choice(replica_processes()), signal.SIGKILL)
        return list(await asyncio.gather(*answers))


def wait_for(number: int) -> None:
    """Wait until so many replicas have their engines: a process has its name before its model."""
    end = time.monotonic() + WAIT_S
    while len(replica_processes()) < number:
        if time.monotonic() > end:
            raise SystemExit(f"{number} replicas were not there within {WAIT_S:g} s")
        time.sleep(0.5)


def compared(before: Sequence[Answer | None], after: Sequence[Answer | None]) -> Round:
    """Return how the answers of a disturbed round differ from the undisturbed ones."""
    pairs = [(one, other) for one, other in zip(before, after, strict=True) if one is not None and other is not None]
    return Round(
        num_different=sum((one.texts, one.ends) != (other.texts, other.ends) for one, other in pairs),
        num_failed=sum(other is None for other in after),
        added_pauses_s=[max(0.0, other.longest_gap_s - one.longest_gap_s) for one, other in pairs],
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url")
    parser.add_argument("--streams", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    asked, number = bodies(arguments.streams, arguments.tokens), len(replica_processes())
    before = asyncio.run(all_answers(arguments.url, asked, kill=False))
    again = compared(before, asyncio.run(all_answers(arguments.url, asked, kill=False)))
    print(f"undisturbed, twice: {again.num_different} different, {again.num_failed} failed, {number} replicas")
    rounds: list[Round] = []
    for i in range(arguments.rounds):
        wait_for(number)
        rounds.append(compared(before, asyncio.run(all_answers(arguments.url, asked, kill=True))))
        pauses = sorted(rounds[-1].added_pauses_s)
        print(
            f"round {i + 1}: {rounds[-1].num_different} different, {rounds[-1].num_failed} failed,"
            f" longest added pause {pauses[-1] if pauses else float('nan'):.2f} s"
        )
    every = [pause for one in rounds for pause in one.added_pauses_s]
    p95 = statistics.quantiles(every, n=20)[-1] if len(every) > 1 else float("nan")
    different, failed = (sum(getattr(one, name) for one in rounds) for name in ("num_different", "num_failed"))
    print(f"all: {different} different, {failed} failed of {len(asked) * len(rounds)}, added pause p95 {p95:.2f} s")
    if arguments.json:
        figures = [asdict(one) for one in rounds]
        arguments.json.write_text(json.dumps({"provenance": provenance({}, {}), "rounds": figures}, indent=1))


if __name__ == "__main__":
    main()
