"""`prolepsis load`: requests that arrive at a running server at times of their own, mode by mode and mixed."""

import asyncio
import json
import math
import random
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import httpx2
import typer

from prolepsis.control.statistics.percentile import percentile
from prolepsis.core.config import SYNTHETIC
from prolepsis.core.errors import ConfigError
from prolepsis.core.terminal.admin import Key, Url, ask, message_of
from prolepsis.core.terminal.config import listed
from prolepsis.core.terminal.documents import print_reply
from prolepsis.core.terminal.output import FAILED, INTERRUPTED, OK, AsJson, note
from prolepsis.core.units import duration
from prolepsis.lab.measure.arrivals import GoalFirstMs, GoalTokenMs, LatencyGoal, arriving
from prolepsis.lab.measure.prompts import Prompt, load_prompts
from prolepsis.lab.rehearsal.trace import TraceLine, read_trace
from prolepsis.remote.verify_events import ServerError, refusal_of
from prolepsis.server.preparing.target import FIRST_TOKEN_MS, MS_PER_TOKEN

Body = Mapping[str, Any]
_RATES = re.compile(r"(\d+(?:\.\d+)?)(?:-(\d+(?:\.\d+)?))?")
TARGET = "target"  # in mode auto, with the goal as its latency target
MODES = {
    "off": ("off",),
    "auto": ("auto",),
    "mixed": ("off", "auto"),
    "targets": (TARGET, "auto", "auto", "auto"),
}
"""What requests ask of speculation, in turns."""
LATE_S = 0.05  # after which a request that was not sent is reported


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
    drafts: Mapping[str, Any] = field(default_factory=dict)  # `metrics.speculative_decoding` of the answer

    @property
    def per_token_s(self) -> float | None:
        """Mean time of a token after the first."""
        first, rest = self.first_token_s, self.num_tokens - 1
        return None if first is None or rest < 1 else (self.total_s - first) / rest


def load(
    *,
    url: Url,
    key: Key = None,
    model: Annotated[str | None, typer.Option(help="model; default: the first that the server has")] = None,
    given: Annotated[str, typer.Option("--arrivals", help="requests a second (2), a ramp (1-8), or a trace")] = "1",
    seconds: Annotated[float, typer.Option(min=0.1, help="how long requests arrive in each mode")] = 60.0,
    modes: Annotated[str, typer.Option(help="one after the other: off, auto, mixed, targets")] = "off,auto",
    prompts: Annotated[Path | None, typer.Option(help="JSON lines as for bench; default: a set in the package")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="most tokens of an answer; a trace has its own")] = 128,
    temperature: Annotated[float, typer.Option(min=0, max=2, help="0 is greedy")] = 0.0,
    seed: Annotated[int, typer.Option(help="of arrivals and answers")] = 0,
    warm_up: Annotated[int, typer.Option(min=0, help="first requests of each mode, which do not count")] = 4,
    goal_first_ms: GoalFirstMs = 2000.0,
    goal_token_ms: GoalTokenMs = 100.0,
    as_json: AsJson = False,
) -> None:
    """Put load on a running server, and compare latency and goodput with and without speculation.

    Requests arrive whether or not the server keeps up, and times count from when they were due.
    """
    wanted, due = dict.fromkeys(listed(modes)), arrivals(given, seconds, max_tokens, seed)
    if not wanted or not wanted.keys() <= MODES.keys():
        raise ConfigError(f"modes is {modes!r}; allowed: {', '.join(MODES)}, comma-separated", param="modes")
    if len(due) <= warm_up:
        raise ConfigError(f"{len(due)} requests arrive in a mode; allowed: more than --warm-up", param="arrivals")
    goal = LatencyGoal.of_ms(goal_first_ms, goal_token_ms)
    target = {FIRST_TOKEN_MS: f"{goal_first_ms:.3f}", MS_PER_TOKEN: f"{goal_token_ms:.3f}"}
    proposers = ask(url, key, "GET", "/health/ready").get("proposers", [])
    name, texts = model or ask(url, key, "GET", "/v1/models")["data"][0]["id"], load_prompts(prompts)
    shared: Body = {"model": name, "temperature": temperature, "seed": seed, "stream": True}
    cautions = ["the drafts are synthetic: no figure is of a real proposer"] if SYNTHETIC in proposers else []
    status, rows = OK, list[dict[str, Any]]()
    for mode in wanted:
        note(f"{mode}: {len(due)} requests in {due[-1].at:.0f} s")
        try:
            answers = asyncio.run(send(url, key, requests(MODES[mode], due, texts, shared), target))[warm_up:]
        except KeyboardInterrupt:
            status, cautions = INTERRUPTED, [*cautions, f"interrupted: there is nothing of {mode} or of modes after it"]
            break
        parts = {f"{mode}: {kind}": [answer for answer in answers if answer.mode == kind] for kind in MODES[mode]}
        shown = {mode: answers} | (parts if len(parts) > 1 else {})
        rows += [{"mode": title, **figures(part, goal)} for title, part in shown.items() if part]
        cautions += warnings(mode, answers)
    facts = {"model": name, "proposers": proposers, "arrivals": given}
    print_reply({**facts, "modes": rows, "warnings": cautions}, as_json=as_json)
    if status or any(row["num_requests"] == row["num_errors"] for row in rows):
        raise typer.Exit(status or FAILED)


def requests(
    kinds: Sequence[str], lines: Sequence[TraceLine], prompts: Sequence[Prompt], shared: Body
) -> list[tuple[float, Body]]:
    """Return requests that ask for these modes of speculation in turns, each prompt too, with the times they are due.

    Whenever the prompts begin again they get another scope: nothing cached or learned of them before is seen.
    """
    scope, due = secrets.token_hex(8), list[tuple[float, Body]]()
    for i, line in enumerate(lines):
        body = {
            "messages": [{"role": "user", "content": prompts[i % len(prompts)].text}],
            "max_tokens": line.output,
            "stream_options": {"include_usage": True},
            "cache_salt": f"{scope} {i // len(prompts)}",
            "speculation": {"mode": kinds[sum(divmod(i, len(prompts))) % len(kinds)], "metrics": True},
        }
        due.append((line.at, {**shared, **body}))
    return due


def figures(answers: Sequence[LoadAnswer], goal: LatencyGoal) -> dict[str, Any]:
    """Return rates, percentiles of times, and acceptance of answers in order of time."""
    served = [answer for answer in answers if not answer.error]
    seconds = max(answer.at + answer.total_s for answer in answers) - answers[0].at
    num_within = sum(goal.is_kept(answer.first_token_s, answer.per_token_s) for answer in served)
    num_tokens = sum(answer.num_tokens for answer in served)
    accepted, drafted = (
        sum(reply.drafts.get(name, 0) for reply in served) for name in ("num_accepted_draft_tokens", "num_draft_tokens")
    )
    times = {
        name: [value for answer in served if (value := getattr(answer, f"{name}_s")) is not None]
        for name in ("first_token", "per_token", "total")
    }
    return {
        "num_requests": len(answers),
        "num_errors": len(answers) - len(served),
        **{f"{name}_p{p}_s": percentile(values, p / 100) for name, values in times.items() for p in (50, 95)},
        "tokens_per_second": num_tokens / seconds,
        "goodput": num_within / seconds,
        "within_goal": num_within / len(answers),
        "tokens_a_pass": num_tokens / (num_tokens - accepted) if num_tokens else None,
        "acceptance_rate": accepted / drafted if drafted else None,
    }


def warnings(mode: str, answers: Sequence[LoadAnswer]) -> list[str]:
    """Return why answers failed, and where the load was lower than asked for."""
    late = [answer.late_s for answer in answers if answer.late_s > LATE_S]
    lines = [f"{mode}: {len(late)} requests were sent late, by up to {duration(max(late))}"] if late else []
    return lines + [f"{mode}: {error}" for error in dict.fromkeys(answer.error for answer in answers) if error]


def arrivals(given: str, seconds: float, max_tokens: int, seed: int) -> list[TraceLine]:
    """Return the requests of RATE or FIRST-LAST (a second, at random), or of a trace's file; raises `ConfigError`."""
    if Path(given).is_file():
        return [line for line in read_trace(Path(given)).lines if line.at < seconds]
    if (rates := _RATES.fullmatch(given)) is None:
        allowed = "requests a second such as 4, a ramp such as 1-8, the file of a trace"
        raise ConfigError(f"arrivals is {given!r}; allowed: {allowed}", param="arrivals")
    first, last = float(rates[1]), float(rates[2] or rates[1])
    lines, chance, slope, num_due = list[TraceLine](), random.Random(seed), (last - first) / seconds, 0.0
    while (num_due := num_due + chance.expovariate(1.0)) < seconds * (first + last) / 2:
        at = 2.0 * num_due / (first + math.sqrt(first**2 + 2.0 * slope * num_due))  # num_due = first t + slope t²/2
        lines.append(TraceLine(at=at, prompt=0, output=max_tokens))
    return lines


async def send(
    url: str, key: str | None, requests: Sequence[tuple[float, Body]], target: Mapping[str, str] | None = None
) -> list[LoadAnswer]:
    """Send chat requests, each with the seconds at which it is due, in order, and return their answers.

    `target`: headers of those of mode `TARGET`.
    """
    headers = {"authorization": f"Bearer {key}"} if key else {}
    unlimited = httpx2.Limits(max_connections=None)  # requests do not wait here for each other
    async with httpx2.AsyncClient(base_url=url, headers=headers, limits=unlimited, timeout=600.0) as http:
        began = asyncio.get_running_loop().time()
        return await arriving((at, partial(_answer, http, body, at, began + at, target)) for at, body in requests)


async def _answer(
    http: httpx2.AsyncClient, body: Body, at: float, due: float, target: Mapping[str, str] | None
) -> LoadAnswer:
    clock = asyncio.get_running_loop().time
    answer, headers = LoadAnswer(at, body["speculation"]["mode"], clock() - due), None
    if answer.mode == TARGET:
        body, headers = {**body, "speculation": {**body["speculation"], "mode": "auto"}}, target
    try:
        async with http.stream("POST", "/v1/chat/completions", json=body, headers=headers) as reply:
            if reply.status_code != httpx2.codes.OK:
                await reply.aread()
                raise refusal_of(reply)
            async for line in reply.aiter_lines():
                if line.startswith("data: {"):
                    _read(json.loads(line.removeprefix("data: ")), answer, clock() - due)
    except (httpx2.HTTPError, ServerError) as error:
        answer.error = f"{type(error).__name__}: {error}"
    answer.total_s = clock() - due
    return answer


def _read(chunk: Mapping[str, Any], answer: LoadAnswer, now: float) -> None:
    if "error" in chunk:
        raise ServerError(message_of(chunk), code="failed")
    deltas = [choice["delta"] for choice in chunk["choices"]]
    if answer.first_token_s is None and any(delta.get("content") or delta.get("reasoning_content") for delta in deltas):
        answer.first_token_s = now
    if usage := chunk.get("usage"):
        answer.num_tokens, answer.error = usage["completion_tokens"], ""
    answer.drafts = chunk.get("metrics", {}).get("speculative_decoding", answer.drafts)
