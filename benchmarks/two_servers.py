"""Two kinds of our server beside each other: tokens a second over HTTP, asked in turn.

Both run the default model; the one that is not asked idles. Each round asks both the same, in turn: streams, and whole
answers. The client is this process, which does little more than count. Told are the medians over rounds, and the ratio
of each round's pair.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx

from prolepsis.lab.measure.prompts import load_prompts
from prolepsis.lab.measure.provenance import provenance
from tests.commands import free_port, prolepsis, serving

KINDS = ("stream", "whole")
LOAD_S = 120.0


@dataclass(frozen=True, slots=True)
class Figure:
    """One kind of answers at one load; tokens a second by arm, round by round."""

    kind: str
    at_once: int
    rates: dict[str, list[float]]

    @property
    def ratios(self) -> list[float]:
        """Of the second arm to the first, of each round."""
        first, second = self.rates.values()
        return [b / a for a, b in zip(first, second, strict=True)]


@contextmanager
def served(options: Sequence[str]) -> Iterator[str]:
    """Start a server and yield its URL once it is ready."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = prolepsis("serve", "--port", str(port), "--store", "none", *options)
    with (
        tempfile.NamedTemporaryFile() as log,
        serving(command, f"{url}/health/ready", Path(log.name), wait_s=LOAD_S),
    ):
        yield url


async def answer(client: httpx.AsyncClient, prompt: str, *, stream: bool, tokens: int) -> int:
    """Ask once and return the number of tokens."""
    body = {
        "model": "smollm2-135m-instruct",
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": tokens,
        "temperature": 0,
        "stream": stream,
    }
    if not stream:
        reply = await client.post("/v1/chat/completions", json=body)
        return int(reply.raise_for_status().json()["usage"]["completion_tokens"])
    body["stream_options"] = {"include_usage": True}
    last = ""
    async with client.stream("POST", "/v1/chat/completions", json=body) as reply:
        reply.raise_for_status()
        async for line in reply.aiter_lines():
            if '"usage":{' in line.replace(" ", ""):
                last = line
    return int(json.loads(last.removeprefix("data:"))["usage"]["completion_tokens"])


async def rate(url: str, prompts: Sequence[str], at_once: int, *, stream: bool, tokens: int) -> float:
    """Return tokens a second of `prompts`, so many at once."""
    waiting, total = list(prompts), 0
    limits = httpx.Limits(max_connections=at_once)
    async with httpx.AsyncClient(base_url=url, timeout=300.0, limits=limits) as client:

        async def ask() -> int:
            found = 0
            while waiting:
                found += await answer(client, waiting.pop(0), stream=stream, tokens=tokens)
            return found

        began = time.monotonic()
        total = sum(await asyncio.gather(*(ask() for _ in range(at_once))))
        return total / (time.monotonic() - began)


async def measure(urls: dict[str, str], loads: Sequence[int], arguments: argparse.Namespace) -> list[Figure]:
    """Ask both servers in turn; the first round warms up and does not count."""
    prompts = [prompt.text for prompt in load_prompts(arguments.prompts)]
    rounds, tokens, arms = arguments.rounds, arguments.tokens, list(urls)
    figures = [Figure(kind, at_once, {arm: [] for arm in arms}) for at_once in loads for kind in KINDS]
    for number in range(rounds + 1):
        for figure in figures:
            asked = [prompts[(number * 48 + i) % len(prompts)] for i in range(max(6, 3 * figure.at_once))]
            for arm in arms if number % 2 else arms[::-1]:
                found = await rate(urls[arm], asked, figure.at_once, stream=figure.kind == "stream", tokens=tokens)
                if number:
                    figure.rates[arm].append(found)
        print(f"round {number} of {rounds}", file=sys.stderr)
    return figures


def compare(question: str, arms: Mapping[str, Sequence[str]], at_once: str) -> None:
    """Measure servers of two sets of options, as the command line says, and print."""
    parser = argparse.ArgumentParser(description=question)
    parser.add_argument("--at-once", default=at_once)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--prompts", type=Path)
    parser.add_argument("--json", type=Path)
    arguments, options = parser.parse_known_args()
    loads = [int(load) for load in arguments.at_once.split(",")]
    with ExitStack() as servers:
        urls = {arm: servers.enter_context(served([*own, *options])) for arm, own in arms.items()}
        figures = asyncio.run(measure(urls, loads, arguments))
    for figure in figures:
        rates = ", ".join(f"{arm} {statistics.median(found):6.1f}" for arm, found in figure.rates.items())
        ratios = sorted(figure.ratios)
        print(
            f"{figure.kind:7}{figure.at_once:3} at once: {rates} tokens/s,"
            f" {statistics.median(ratios):.2f}x ({ratios[0]:.2f}-{ratios[-1]:.2f})"
        )
    if arguments.json:
        report = {"provenance": provenance({}, {}), "figures": [asdict(figure) for figure in figures]}
        arguments.json.write_text(json.dumps(report, indent=1))
