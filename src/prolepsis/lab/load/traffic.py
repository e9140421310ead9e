"""Requests that are sent when they are due, however many are under way, and what became of them."""

import asyncio
import json
import math
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from prolepsis.core.errors import ConfigError
from prolepsis.core.terminal.admin import message_of
from prolepsis.lab.rehearsal.trace import TraceLine, read_trace
from prolepsis.remote.verify_events import ServerError, refusal_of

Body = Mapping[str, Any]
_RATES = re.compile(r"(\d+(?:\.\d+)?)(?:-(\d+(?:\.\d+)?))?")


def arrivals(given: str, seconds: float, max_tokens: int, seed: int) -> list[TraceLine]:
    """Return the requests of RATE or FIRST-LAST (a second, at random), or of a trace's file; raises `ConfigError`."""
    if Path(given).is_file():
        return [line for line in read_trace(Path(given)).lines if line.at < seconds]
    if (rates := _RATES.fullmatch(given)) is None:
        allowed = "requests a second such as 4, a ramp such as 1-8, the file of a trace"
        raise ConfigError(f"arrivals is {given!r}; allowed: {allowed}", param="arrivals")
    first, last = float(rates[1]), float(rates[2] or rates[1])
    found, chance, slope, num_due = list[TraceLine](), random.Random(seed), (last - first) / seconds, 0.0
    while (num_due := num_due + chance.expovariate(1.0)) < seconds * (first + last) / 2:
        at = 2.0 * num_due / (first + math.sqrt(first**2 + 2.0 * slope * num_due))  # num_due = first t + slope t²/2
        found.append(TraceLine(at=at, prompt=0, output=max_tokens))
    return found


@dataclass(slots=True)
class LoadAnswer:
    """What became of a request that was due `at` seconds and sent `late_s`; later times count from when it was due."""

    at: float
    mode: str
    late_s: float
    error: str = "the stream ended before the answer did"
    first_token_s: float | None = None
    total_s: float = 0.0
    num_tokens: int = 0
    drafts: Mapping[str, Any] = field(default_factory=dict)
    """`metrics.speculative_decoding` of the answer."""

    @property
    def per_token_s(self) -> float | None:
        """Mean time of a token after the first."""
        first, rest = self.first_token_s, self.num_tokens - 1
        return None if first is None or rest < 1 else (self.total_s - first) / rest


async def send(url: str, key: str | None, requests: Sequence[tuple[float, Body]]) -> list[LoadAnswer]:
    """Send chat requests, each with the seconds at which it is due, in order, and return their answers."""
    headers, loop = {"authorization": f"Bearer {key}"} if key else {}, asyncio.get_running_loop()
    began, tasks = loop.time(), list[asyncio.Task[LoadAnswer]]()
    unlimited = httpx.Limits(max_connections=None)  # requests do not wait here for each other
    async with httpx.AsyncClient(base_url=url, headers=headers, limits=unlimited, timeout=600.0) as http:
        for at, body in requests:
            await asyncio.sleep(max(0.0, began + at - loop.time()))
            tasks.append(asyncio.create_task(_answer(http, body, at, began + at)))
        return await asyncio.gather(*tasks)


async def _answer(http: httpx.AsyncClient, body: Body, at: float, due: float) -> LoadAnswer:
    clock = asyncio.get_running_loop().time
    answer = LoadAnswer(at, body["speculation"]["mode"], clock() - due)
    try:
        async with http.stream("POST", "/v1/chat/completions", json=body) as reply:
            if reply.status_code != httpx.codes.OK:
                await reply.aread()
                raise refusal_of(reply)
            async for line in reply.aiter_lines():
                if line.startswith("data: {"):
                    _read(json.loads(line.removeprefix("data: ")), answer, clock() - due)
    except (httpx.HTTPError, ServerError) as error:
        answer.error = f"{type(error).__name__}: {error}"
    answer.total_s = clock() - due
    return answer


def _read(chunk: Mapping[str, Any], answer: LoadAnswer, now: float) -> None:
    if "error" in chunk:
        raise ServerError(message_of(chunk), code="failed")
    deltas = [choice["delta"] for choice in chunk["choices"]]
    if answer.first_token_s is None and any(one.get("content") or one.get("reasoning_content") for one in deltas):
        answer.first_token_s = now
    if usage := chunk.get("usage"):
        answer.num_tokens, answer.error = usage["completion_tokens"], ""
    answer.drafts = chunk.get("metrics", {}).get("speculative_decoding", answer.drafts)
