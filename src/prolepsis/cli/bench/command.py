"""`prolepsis bench`: arms of one engine and peers, measured side by side."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from prolepsis.cli.bench.arms import parse_arms
from prolepsis.cli.bench.engine_arm import Asking, EngineArm, StepTimes
from prolepsis.cli.bench.measure import Contender, Notify, Schedule, measure
from prolepsis.cli.bench.peer_settings import find_peers
from prolepsis.cli.bench.peers import PeerLimits, PeerProcess, PeerSpec, parse_peers
from prolepsis.cli.bench.prompts import DEFAULT_PROMPTS, ChatTokenizer, Prompt, encode_prompts, load_prompts
from prolepsis.cli.bench.provenance import provenance, usable_cores
from prolepsis.cli.bench.report import Setting, document
from prolepsis.cli.bench.tables import print_report
from prolepsis.cli.config import BenchConfig, Settings, listed
from prolepsis.cli.flags import configured
from prolepsis.cli.output import note
from prolepsis.core.config import EngineConfig
from prolepsis.core.errors import ConfigError, EngineDead, ProlepsisError
from prolepsis.core.requests import SamplingParams
from prolepsis.engine.client import EngineClient

READY_S = 1800.0
"""Longest wait for an engine that still compiles in the background."""


@dataclass(frozen=True, slots=True)
class Job:
    """What the command line asked for."""

    prompts_file: str
    prompts: tuple[Prompt, ...]
    arms: str
    schedule: Schedule
    params: SamplingParams
    num_speculative_tokens: int = 16
    """Ceiling on drafted tokens of every arm but those with a greater fixed depth."""
    peers: tuple[PeerSpec, ...] = ()
    peer_threads: int = 1


@configured(EngineConfig, BenchConfig)
def bench(
    settings: Settings,
    *,
    prompts: Annotated[
        Path | None, typer.Option(help="JSON lines with id, category, prompt; default: a small set of our own")
    ] = None,
    arms: Annotated[str, typer.Option(help="plain, auto, a proposer's name, or NAME@DEPTH; by comma")] = "plain,auto",
    peers: Annotated[str, typer.Option(help="transformers, vllm, openvino, or KIND:VARIANT; by comma")] = "",
    concurrency: Annotated[str, typer.Option(help="requests in flight; by comma")] = "1",
    categories: Annotated[str, typer.Option(help="of the prompts; by comma; default: all")] = "",
    max_tokens: Annotated[int, typer.Option(help="longest answer")] = 128,
    repeats: Annotated[int, typer.Option(min=1, help="rounds of alternation")] = 3,
    temperature: Annotated[float, typer.Option(help="0 is greedy")] = 0.0,
    top_p: Annotated[float, typer.Option(help="nucleus of the sampling")] = 1.0,
    seed: Annotated[int, typer.Option(help="of the first prompt; the others count on from it")] = 0,
    as_json: Annotated[Path | None, typer.Option("--json", help="write the report as JSON to this file")] = None,
) -> None:
    """Measure ways of decoding side by side."""
    params = SamplingParams(temperature=temperature, top_p=top_p, max_tokens=max_tokens, seed=seed)
    params.validate(vocab_size=1)
    if peers and temperature > 0:
        raise ConfigError(f"temperature is {temperature}; allowed with --peers: 0", param="temperature")
    parse_arms(arms, _proposers(settings.engine))  # before the model is loaded
    specs = find_peers(
        parse_peers(peers), settings.bench.peer_python, settings.bench.peer_model, lambda: _exported(settings)
    )
    if as_json is not None and not as_json.absolute().parent.is_dir():
        raise ConfigError(f"--json {as_json}: its folder does not exist", param="json")
    job = Job(
        prompts_file=str(prompts or DEFAULT_PROMPTS),
        prompts=load_prompts(prompts, listed(categories)),
        arms=arms,
        schedule=Schedule(_levels(concurrency), repeats),
        params=params,
        num_speculative_tokens=settings.engine.num_speculative_tokens,
        peers=specs,
        peer_threads=settings.engine.threads or usable_cores(),
    )
    report = asyncio.run(_run(job, settings))
    if as_json is not None:
        as_json.write_text(json.dumps(report, indent=1) + "\n")
    print_report(report)


async def _run(job: Job, settings: Settings) -> dict[str, object]:
    from prolepsis.cli.engine import running

    async with running(settings) as engine:
        return await run_bench(job, engine.client, engine.tokenizer, engine.client.engine.timings)


async def run_bench(
    job: Job, client: EngineClient, tokenizer: ChatTokenizer, times: StepTimes | None = None, notify: Notify = note
) -> dict[str, object]:
    """Measure `job` on an engine that runs already and return the report; raises what fails but for peers."""
    arms = parse_arms(job.arms, client.info.proposers, job.num_speculative_tokens)
    prompts = encode_prompts(job.prompts, tokenizer)
    seeds = {prompt.id: job.params.seed + i for i, prompt in enumerate(prompts)}
    asking = Asking(client, job.params, seeds, times)
    async with _peers(job, client, tokenizer, notify) as (peers, failed):
        await _ready(client, notify)
        contenders: list[Contender] = [*(EngineArm(arm, asking) for arm in arms), *peers]
        done = await measure(contenders, prompts, job.schedule, notify)
    done.failed.update(failed)
    setting = Setting(
        prompts_file=job.prompts_file,
        prompts=prompts,
        schedule=job.schedule,
        params=job.params,
        arms=tuple(arm.name for arm in arms),
        peers=tuple(spec.name for spec in job.peers),
    )
    versions = {name: version for peer in peers for name, version in _told_versions(peer).items()}
    return document(setting, done, client.info, provenance({"first_prompt": job.params.seed}, versions))


@asynccontextmanager
async def _peers(
    job: Job, client: EngineClient, tokenizer: ChatTokenizer, notify: Notify
) -> AsyncIterator[tuple[list[PeerProcess], dict[str, str]]]:
    """Load the peers one after another; give those that came up, and why the others did not."""
    limits = PeerLimits(
        threads=job.peer_threads,
        max_tokens=job.params.max_tokens,
        max_model_len=client.info.max_model_len,
        max_num_seqs=max(job.schedule.concurrency),
        eos_token_ids=tokenizer.eos_token_ids,
    )
    peers: list[PeerProcess] = []
    failed: dict[str, str] = {}
    try:
        for spec in job.peers:
            notify(f"loading peer {spec.name}")
            peers.append(PeerProcess(spec, limits))
            try:
                await peers[-1].load()
            except ProlepsisError as error:
                failed[spec.name] = str(error)
                await peers.pop().close()
        yield peers, failed
    finally:
        for peer in peers:
            await peer.close()


async def _ready(client: EngineClient, notify: Notify) -> None:
    """Wait until the engine has warmed up, so that no arm pays for it."""
    if detail := client.health().detail:
        notify(f"waiting for the engine: {detail}")
    for _ in range(int(READY_S / 0.1)):
        health = client.health()
        if not health.alive:
            raise EngineDead(f"the engine ended: {health.detail}")
        if health.ready:
            return
        await asyncio.sleep(0.1)
    raise EngineDead(f"the engine is not ready after {READY_S:.0f} s: {client.health().detail}")


def _told_versions(peer: PeerProcess) -> dict[str, str]:
    return {f"{peer.name} {package}": version for package, version in peer.versions.items()}


def _exported(settings: Settings) -> Path:
    """The configured model as safetensors, made at first use beside the other models."""
    from prolepsis.cli.bench.export import export_model
    from prolepsis.cli.models import ensure_model
    from prolepsis.core.files import cache_directory
    from prolepsis.models.files.store import resolve

    ensure_model(settings)
    model = settings.engine.model
    return export_model(resolve(model, settings.engine.model_dir), cache_directory() / "exports" / Path(model).name)


def _proposers(config: EngineConfig) -> tuple[str, ...]:
    """Return the proposers that the engine may have; only once it is loaded is it known whether a head fits it."""
    others = (("draft_model", config.draft_model is not None), ("draft_head", config.draft_head != "none"))
    return tuple(dict.fromkeys((*config.proposers, *(name for name, there in others if there))))


def _levels(text: str) -> tuple[int, ...]:
    parts = listed(text)
    if not parts or not all(part.isascii() and part.isdigit() and int(part) > 0 for part in parts):
        raise ConfigError(f"concurrency is {text!r}; allowed: whole numbers from 1, by comma", param="concurrency")
    return tuple(dict.fromkeys(int(part) for part in parts))
