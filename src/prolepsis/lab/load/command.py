"""`prolepsis load`: requests that arrive at a running server at times of their own, mode by mode and mixed."""

import asyncio
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from prolepsis.control.statistics.percentile import percentile
from prolepsis.core.config import SYNTHETIC
from prolepsis.core.errors import ConfigError
from prolepsis.core.terminal.admin import HERE, Key, Url, ask
from prolepsis.core.terminal.config import listed
from prolepsis.core.terminal.documents import print_reply
from prolepsis.core.terminal.output import FAILED, AsJson, note
from prolepsis.core.units import duration
from prolepsis.lab.bench.prompts import Prompt, load_prompts
from prolepsis.lab.load.traffic import Body, LoadAnswer, arrivals, send
from prolepsis.lab.rehearsal.goal import GoalFirstMs, GoalTokenMs, LatencyGoal
from prolepsis.lab.rehearsal.trace import TraceLine

MODES = {"off": ("off",), "auto": ("auto",), "mixed": ("off", "auto")}  # what requests ask of speculation, in turns
LATE_S = 0.05  # after which a request that was not sent is reported


def load(
    *,
    url: Url = HERE,
    key: Key = None,
    model: Annotated[str | None, typer.Option(help="model; default: the first that the server has")] = None,
    given: Annotated[str, typer.Option("--arrivals", help="requests a second (2), a ramp (1-8), or a trace")] = "1",
    seconds: Annotated[float, typer.Option(min=0.1, help="how long requests arrive in each mode")] = 60.0,
    modes: Annotated[str, typer.Option(help="one after the other: off, auto, mixed")] = "off,auto",
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
    goal = LatencyGoal(first_token_s=goal_first_ms / 1000.0, per_token_s=goal_token_ms / 1000.0)
    proposers = ask(url, key, "GET", "/health/ready").get("proposers", [])
    name, texts = model or ask(url, key, "GET", "/v1/models")["data"][0]["id"], load_prompts(prompts)
    shared: Body = {"model": name, "temperature": temperature, "seed": seed, "stream": True}
    told = ["the drafts are synthetic: no figure is of a real proposer"] if SYNTHETIC in proposers else []
    found: list[dict[str, Any]] = []
    for mode in wanted:
        note(f"{mode}: {len(due)} requests in {due[-1].at:.0f} s")
        answers = asyncio.run(send(url, key, requests(MODES[mode], due, texts, shared)))[warm_up:]
        parts = {f"{mode}: {kind}": [one for one in answers if one.mode == kind] for kind in MODES[mode]}
        shown = {mode: answers} | (parts if mode == "mixed" else {})
        found += [{"mode": title, **figures(part, goal)} for title, part in shown.items() if part]
        told += warnings(mode, answers)
    facts = {"model": name, "proposers": proposers, "arrivals": given}
    print_reply({**facts, "modes": found, "warnings": told}, as_json=as_json)
    if any(one["num_requests"] == one["num_errors"] for one in found):
        raise typer.Exit(FAILED)


def requests(
    kinds: Sequence[str], lines: Sequence[TraceLine], prompts: Sequence[Prompt], shared: Body
) -> list[tuple[float, Body]]:
    """Return requests that ask for these modes of speculation in turns, each prompt too, with the times they are due.

    Whenever the prompts begin again they get another scope: nothing cached or learned of them before is seen.
    """
    scope, found = secrets.token_hex(8), list[tuple[float, Body]]()
    for i, line in enumerate(lines):
        asked = {
            "messages": [{"role": "user", "content": prompts[i % len(prompts)].text}],
            "max_tokens": line.output,
            "stream_options": {"include_usage": True},
            "cache_salt": f"{scope} {i // len(prompts)}",
            "speculation": {"mode": kinds[sum(divmod(i, len(prompts))) % len(kinds)], "metrics": True},
        }
        found.append((line.at, {**shared, **asked}))
    return found


def figures(answers: Sequence[LoadAnswer], goal: LatencyGoal) -> dict[str, Any]:
    """Return rates, percentiles of times, and acceptance of answers in order of time."""
    served = [one for one in answers if not one.error]
    seconds = max(one.at + one.total_s for one in answers) - answers[0].at
    num_tokens = sum(one.num_tokens for one in served)
    accepted, drafted = (
        sum(one.drafts.get(name, 0) for one in served) for name in ("num_accepted_draft_tokens", "num_draft_tokens")
    )
    times = {
        name: [value for one in served if (value := getattr(one, f"{name}_s")) is not None]
        for name in ("first_token", "per_token", "total")
    }
    return {
        "num_requests": len(answers),
        "num_errors": len(answers) - len(served),
        **{f"{name}_p{p}_s": percentile(values, p / 100) for name, values in times.items() for p in (50, 95)},
        "tokens_per_second": num_tokens / seconds,
        "goodput": sum(goal.is_kept(one.first_token_s, one.per_token_s) for one in served) / seconds,
        "tokens_a_pass": num_tokens / (num_tokens - accepted) if num_tokens else None,
        "acceptance_rate": accepted / drafted if drafted else None,
    }


def warnings(mode: str, answers: Sequence[LoadAnswer]) -> list[str]:
    """Return why answers failed, and where the load was lower than asked for."""
    late = [one.late_s for one in answers if one.late_s > LATE_S]
    told = [f"{mode}: {len(late)} requests were sent late, by up to {duration(max(late))}"] if late else []
    return told + [f"{mode}: {error}" for error in dict.fromkeys(one.error for one in answers) if error]
