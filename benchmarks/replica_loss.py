"""What do clients notice when a replica is lost, falls silent or is replaced while it streams?

Usage: python -m benchmarks.replica_loss URL [--act ACT] [--streams 48] [--rounds 20] [--tokens 64] [--json OUT]

URL is of `prolepsis serve --replicas N`, or of the application of Ray Serve, on this machine. The requests are of six
kinds, with fixed seeds: greedy, sampled, a JSON schema, a tool call, two samples, and penalties. They are answered once
undisturbed; then, in each round, ACT happens when every stream has begun, and each output is compared with the
undisturbed one. Told are outputs that differ, requests that failed, and the longest gap of each stream less the longest
of its undisturbed run.

ACT is `kill` (SIGKILL to one replica), `stop` (SIGSTOP: it keeps its connections and says nothing), or a command, such
as `ip link set veth0 down` where a replica is behind veth0, or with --replaces one that replaces all replicas, such as
`serve deploy`: then the requests are asked again until none of the first replicas is left, so that they meet every
stage of it. A round begins when all replicas are ready.
"""

import asyncio
import json
import os
import random
import shlex
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import httpx2

from benchmarks.script import keep, options
from tests.adapters.ray.processes import replica_processes

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
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


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


def bodies(model: str, number: int, tokens: int) -> list[dict[str, object]]:
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
            "model": model,
            "messages": [{"role": "user", "content": QUESTIONS[i % len(QUESTIONS)]}],
            "max_tokens": tokens,
            "seed": i,
            "stream": True,
            **kinds[i % len(kinds)],
        }
        for i in range(number)
    ]


async def ask(client: httpx2.AsyncClient, body: dict[str, object], begun: asyncio.Semaphore) -> Answer | None:
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
    except httpx2.HTTPError as error:
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


async def all_answers(
    url: str, asked: Sequence[dict[str, object]], act: Callable[[], object] | None = None
) -> list[Answer | None]:
    """Answer all at once; `act` is called when every stream has begun."""
    begun = asyncio.Semaphore(0)
    limits = httpx2.Limits(max_connections=len(asked))
    async with httpx2.AsyncClient(base_url=url, timeout=WAIT_S, limits=limits) as client:
        answers = [asyncio.create_task(ask(client, body, begun)) for body in asked]
        for _ in asked:
            await begun.acquire()
        if act is not None:
            act()
        return list(await asyncio.gather(*answers))


def disturbed(act: str, url: str, asked: Sequence[dict[str, object]], *, replaces: bool) -> list[list[Answer | None]]:
    """Return the answers of one round, for each time that all was asked."""
    if act in SIGNALS:
        one = random.choice(replica_processes())  # now: to look for them takes up to 2 s, in which nobody would read
        return [asyncio.run(all_answers(url, asked, partial(os.kill, one, SIGNALS[act])))]
    first, started, end = set(replica_processes()), list[subprocess.Popen[bytes]](), time.monotonic() + WAIT_S

    def start() -> None:
        started.append(subprocess.Popen(shlex.split(act)))  # noqa: S603

    found = [asyncio.run(all_answers(url, asked, start))]
    while started[0].poll() is None or (replaces and first & set(replica_processes())):
        if time.monotonic() > end:
            raise SystemExit(f"after {WAIT_S:g} s some of the first replicas were still there")
        found.append(asyncio.run(all_answers(url, asked)))
    if started[0].returncode:
        raise SystemExit(f"the command ended with status {started[0].returncode}")
    return found


def wait_for(number: int, url: str) -> None:
    """Wait until front ends have so many replicas that are ready, and know of no other one."""
    end = time.monotonic() + WAIT_S
    while len(there := set(replica_processes())) < number or any(ready != there for ready in ready_at_front_ends(url)):
        if time.monotonic() > end:
            raise SystemExit(f"{number} replicas were not ready within {WAIT_S:g} s")
        time.sleep(0.5)


def ready_at_front_ends(url: str) -> list[set[int]]:
    """Return the processes of the replicas that each front door shows as ready."""
    servers = httpx2.get(f"{url}/admin/replicas", timeout=WAIT_S).raise_for_status().json()["replicas"]
    serving = [server["engines"] for server in servers if server["state"] == "ready"]
    return [{int(one["name"].rsplit("-", 2)[1]) for one in engines if one["ready"]} for engines in serving]


def compared(before: Sequence[Answer | None], after: Sequence[Answer | None]) -> Round:
    """Return how the answers of a disturbed round differ from the undisturbed ones."""
    pairs = [(one, other) for one, other in zip(before, after, strict=True) if one is not None and other is not None]
    return Round(
        num_different=sum((one.texts, one.ends) != (other.texts, other.ends) for one, other in pairs),
        num_failed=sum(other is None for other in after),
        added_pauses_s=[max(0.0, other.longest_gap_s - one.longest_gap_s) for one, other in pairs],
    )


def summary(rounds: Sequence[Round], num_asked: int) -> str:
    """Return the sums over all times that so many requests were asked."""
    pauses = [pause for one in rounds for pause in one.added_pauses_s]
    p95 = statistics.quantiles(pauses, n=20)[-1] if len(pauses) > 1 else float("nan")
    different, failed = (sum(getattr(one, name) for one in rounds) for name in ("num_different", "num_failed"))
    return (
        f"{different} different, {failed} failed of {num_asked * len(rounds)}, added pause p95 {p95:.2f} s, longest"
        f" {max(pauses, default=float('nan')):.2f} s"
    )


def main() -> None:
    """Measure and print."""
    arguments = options(
        __doc__.splitlines()[0],
        "url",
        act="kill",
        replaces=False,
        model="smollm2-135m-instruct",
        streams=48,
        rounds=20,
        tokens=64,
    )
    asked = bodies(arguments.model, arguments.streams, arguments.tokens)
    number = len(replica_processes())
    before = asyncio.run(all_answers(arguments.url, asked))
    again = compared(before, asyncio.run(all_answers(arguments.url, asked)))
    print(f"undisturbed, twice: {again.num_different} different, {again.num_failed} failed, {number} replicas")
    rounds: list[Round] = []
    for i in range(arguments.rounds):
        wait_for(number, arguments.url)
        found = [
            compared(before, after)
            for after in disturbed(arguments.act, arguments.url, asked, replaces=arguments.replaces)
        ]
        print(f"round {i + 1}: {summary(found, len(asked))}")
        rounds += found
    print(f"all: {summary(rounds, len(asked))}")
    keep(arguments, rounds=[asdict(one) for one in rounds])


if __name__ == "__main__":
    main()
