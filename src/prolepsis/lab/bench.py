"""`prolepsis bench`: arms of one engine, measured side by side."""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from prolepsis.core.config import EngineConfig
from prolepsis.core.engine_client import EngineClient
from prolepsis.core.errors import ConfigError, EngineDead
from prolepsis.core.requests import SamplingParams
from prolepsis.core.terminal.config import Settings, listed
from prolepsis.core.terminal.flags import configured
from prolepsis.core.terminal.output import FAILED, note
from prolepsis.engine.text.tokenizer import ChatTokenizer
from prolepsis.lab.measure.contenders import Contender, EngineArm, Notify, Run, Schedule, measure, parse_arms
from prolepsis.lab.measure.gates import judged, parse_gates, quote
from prolepsis.lab.measure.prompts import DEFAULT_PROMPTS, Prompt, encode_prompts, load_prompts
from prolepsis.lab.measure.provenance import hardware, provenance
from prolepsis.lab.measure.report import Figures, Setting, document, print_report, print_sentence

READY_S = 1800.0
"""Longest wait for an engine that is not ready yet."""


@dataclass(frozen=True, slots=True)
class BenchJob:
    """The measurement that the command line describes."""

    prompts_file: str
    prompts: tuple[Prompt, ...]
    arms: str
    schedule: Schedule
    params: SamplingParams
    num_speculative_tokens: int = 24
    """Ceiling on drafted tokens of every arm but those with a greater fixed depth."""


@configured(EngineConfig)
def bench(
    settings: Settings,
    *,
    prompts: Annotated[
        Path | None, typer.Option(help="JSON lines with id, category and prompt; default: a small set in the package")
    ] = None,
    arms: Annotated[
        str, typer.Option(help="comma-separated: plain, auto, the name of a proposer, or NAME@DEPTH")
    ] = "plain,auto",
    concurrency: Annotated[str, typer.Option(help="requests in flight, comma-separated")] = "1",
    categories: Annotated[str, typer.Option(help="use only prompts of these categories, comma-separated")] = "",
    max_tokens: Annotated[int, typer.Option(help="most tokens of an answer")] = 128,
    repeats: Annotated[int, typer.Option(min=1, help="how often each arm answers every prompt")] = 3,
    temperature: Annotated[float, typer.Option(help="0 is greedy")] = 0.0,
    top_p: Annotated[float, typer.Option(help="1 keeps all tokens")] = 1.0,
    seed: Annotated[int, typer.Option(help="of the first prompt; each further prompt adds 1")] = 0,
    gate: Annotated[str, typer.Option(help="acceptance>=0.6,speedup>=1.1,exact: exit status 1 if one is missed")] = "",
    as_json: Annotated[Path | None, typer.Option("--json", help="write the report as JSON to this file")] = None,
) -> None:
    """Measure decoding with and without speculation side by side."""
    params = SamplingParams(temperature=temperature, top_p=top_p, max_tokens=max_tokens, seed=seed)
    params.validate(vocab_size=1)
    plans, gates = parse_arms(arms, _proposers(settings.engine)), parse_gates(gate)  # before the model is loaded
    if gates and len(plans) == 1:
        raise ConfigError(f"gate is {gate!r} with the arm plain alone; allowed: with an arm that drafts", param="gate")
    check_folder(as_json)
    job = BenchJob(
        prompts_file=str(prompts or DEFAULT_PROMPTS),
        prompts=load_prompts(prompts, listed(categories)),
        arms=arms,
        schedule=Schedule(parse_levels(concurrency), repeats),
        params=params,
        num_speculative_tokens=settings.engine.num_speculative_tokens,
    )

    async def measured() -> dict[str, object]:
        from prolepsis.server.cli.engine import running

        async with running(settings) as engine:
            return await run_bench(job, engine.client, engine.tokenizer)

    report = asyncio.run(measured())
    report["gates"] = results = list(judged(gates, report))
    if as_json is not None:
        as_json.write_text(json.dumps(report, indent=1) + "\n")
    print_report(report)
    print_sentence(report)
    if not all(result["passed"] for result in results):
        raise typer.Exit(FAILED)


async def run_bench(
    job: BenchJob, client: EngineClient, tokenizer: ChatTokenizer, notify: Notify = note
) -> dict[str, object]:
    """Measure `job` on a running engine and return the report; raises the error of a request that fails."""
    setting, runs = await measure_arms(job, client, tokenizer, notify)
    report = document(setting, runs, client.info, provenance({"first_prompt": job.params.seed}, {}))
    return {**report, "sentence": quote(Figures(runs), setting, client.info, hardware())}


async def measure_arms(
    job: BenchJob,
    client: EngineClient,
    tokenizer: ChatTokenizer,
    notify: Notify = note,
    others: Sequence[Contender] = (),
) -> tuple[Setting, list[Run]]:
    """Run the arms of `job`, in turns with `others`, once the engine is ready: no arm is charged for its warm-up."""
    plans = parse_arms(job.arms, client.info.proposers, job.num_speculative_tokens)
    prompts = encode_prompts(job.prompts, tokenizer)
    seeds = {prompt.id: job.params.seed + i for i, prompt in enumerate(prompts)}
    arms = [EngineArm(name, plan, client, job.params, seeds) for name, plan in plans.items()]
    await until_ready(client, notify)
    runs = await measure([*arms, *others], prompts, job.schedule, notify)
    return Setting(job.prompts_file, prompts, job.schedule, job.params, tuple(plans)), runs


async def until_ready(client: EngineClient, notify: Notify) -> None:
    """Wait until an engine is ready; raises `EngineDead` if it ends, or is not in time."""
    if detail := client.health().detail:
        notify(f"waiting for the engine: {detail}")
    end = time.monotonic() + READY_S
    while not (health := client.health()).ready or not health.alive:
        if not health.alive:
            raise EngineDead(f"the engine ended: {health.detail}")
        if time.monotonic() > end:
            raise EngineDead(f"the engine is not ready after {READY_S:.0f} s: {health.detail}")
        await asyncio.sleep(0.1)


def _proposers(config: EngineConfig) -> tuple[str, ...]:
    """Return the proposers that the engine may have; whether a head fits the model is known once it is loaded."""
    others = {
        "draft_model": config.draft_model is not None,
        "draft_head": config.draft_head != "none",
        "remote": config.remote_proposer is not None,
    }
    return tuple(dict.fromkeys((*config.proposers, *(name for name, there in others.items() if there))))


def parse_levels(text: str) -> tuple[int, ...]:
    """Return the numbers of requests in flight that `text` lists; raises `ConfigError`."""
    parts = listed(text)
    if not parts or not all(part.isascii() and part.isdigit() and int(part) > 0 for part in parts):
        raise ConfigError(
            f"concurrency is {text!r}; allowed: whole numbers from 1, comma-separated", param="concurrency"
        )
    return tuple(dict.fromkeys(int(part) for part in parts))


def check_folder(report: Path | None) -> None:
    """Raise `ConfigError` if the folder that a report is to be written to does not exist."""
    if report is not None and not report.absolute().parent.is_dir():
        raise ConfigError(f"--json {report}: its folder does not exist", param="json")
