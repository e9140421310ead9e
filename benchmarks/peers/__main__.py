"""Measures arms of one engine side by side with other engines on the same prompts and weights.

Usage: python -m benchmarks.peers --peers vllm,transformers --python vllm=PYTHON,transformers=PYTHON
       [--target coder|twin-0.5b|twin-1b|twin-3b] [--model openvino=FOLDER,llamacpp=FILE]
       [--prompts FILE] [--arms plain,auto] [--concurrency 1,4] [--repeats 3] [--json OUT]

`--target` names a yardstick (benchmarks.yardsticks); llama.cpp then runs the same file unless `--model` says otherwise.
The engine is configured by PROLEPSIS_* variables and ./prolepsis.yaml, as for `prolepsis bench`. Decoding is greedy.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from benchmarks.peers.process import LOOP, VARIANTS, Peer, PeerLimits, PeerProcess, PeerSpec, find_peers, parse_peers
from benchmarks.peers.report import peers_document, print_peers_report
from benchmarks.yardsticks import NAMES, file_of
from prolepsis.core.engine_client import EngineClient
from prolepsis.core.errors import ProlepsisError
from prolepsis.core.files import cache_directory
from prolepsis.core.requests import SamplingParams
from prolepsis.core.terminal.config import Settings, listed
from prolepsis.core.terminal.flags import settings_here
from prolepsis.core.terminal.output import exit_status, note, print_error
from prolepsis.engine.commands.downloads import ensure_model
from prolepsis.engine.models.files.export import export_model
from prolepsis.engine.models.files.store import resolve
from prolepsis.engine.native.processor import default_threads
from prolepsis.engine.text.tokenizer import ChatTokenizer
from prolepsis.lab.bench import BenchJob, check_folder, measure_arms, parse_levels
from prolepsis.lab.measure.contenders import Notify, Schedule
from prolepsis.lab.measure.prompts import DEFAULT_PROMPTS, load_prompts
from prolepsis.lab.measure.provenance import provenance
from prolepsis.server.cli.engine import running


class EndingTokenizer(ChatTokenizer, Protocol):
    @property
    def eos_token_ids(self) -> tuple[int, ...]: ...


async def measure_with_peers(  # noqa: PLR0917  # the engine with its tokenizer, and what to measure with it
    job: BenchJob,
    specs: Sequence[PeerSpec],
    threads: int,
    client: EngineClient,
    tokenizer: EndingTokenizer,
    notify: Notify = note,
    loop: Path = LOOP,
) -> dict[str, Any]:
    """Measure `job` with peers among the arms and return the report; raises what fails except for peers."""
    limits = PeerLimits(
        threads=threads,
        max_tokens=job.params.max_tokens,
        max_model_len=client.info.max_model_len,
        max_num_seqs=max(job.schedule.concurrency),
        eos_token_ids=tokenizer.eos_token_ids,
    )
    async with _loaded(specs, limits, notify, loop) as peers:
        setting, runs = await measure_arms(job, client, tokenizer, notify, peers)
    versions = {name: version for peer in peers for name, version in peer.versions.items()}
    return peers_document(setting, runs, client.info, provenance({"first_prompt": job.params.seed}, versions), peers)


@asynccontextmanager
async def _loaded(
    specs: Sequence[PeerSpec], limits: PeerLimits, notify: Notify, loop: Path
) -> AsyncIterator[list[Peer]]:
    """Load the peers one after another; one that does not load is a peer that failed."""
    peers: list[Peer] = []
    async with AsyncExitStack() as stack:
        for spec in specs:
            notify(f"loading peer {spec.name}")
            process = PeerProcess(spec, limits, loop)
            stack.push_async_callback(process.close)
            peers.append(Peer(process, spec.kind))
            try:
                await process.load()
            except ProlepsisError as error:
                peers[-1].failure = str(error)
        yield peers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", required=True, help=f"{', '.join(VARIANTS)} or KIND:VARIANT, comma-separated")
    parser.add_argument("--python", default="", help="KIND=PATH,...: the Python that has the peer's packages")
    parser.add_argument("--target", choices=NAMES, help="the model that is measured; default: the engine's setting")
    parser.add_argument("--model", default="", help="KIND=PATH,...: the model folder that the peer loads")
    parser.add_argument("--prompts", type=Path)
    parser.add_argument("--categories", default="")
    parser.add_argument("--arms", default="plain,auto")
    parser.add_argument("--concurrency", default="1")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--json", type=Path)
    try:
        report = _report(parser.parse_args())
    except ProlepsisError as error:
        print_error(error)
        sys.exit(exit_status(error))
    print_peers_report(report)


def _report(args: argparse.Namespace) -> dict[str, Any]:
    settings, models = settings_here(), _paths(args.model)
    if args.target is not None:
        file = file_of(args.target)
        settings = replace(settings, engine=settings.engine.model_copy(update={"model": str(file)}))
        models.setdefault("llamacpp", file)
    check_folder(args.json)
    specs = find_peers(parse_peers(args.peers), _paths(args.python), models, lambda: _exported(settings))
    job = BenchJob(
        prompts_file=str(args.prompts or DEFAULT_PROMPTS),
        prompts=load_prompts(args.prompts, listed(args.categories)),
        arms=args.arms,
        schedule=Schedule(parse_levels(args.concurrency), args.repeats),
        params=SamplingParams(temperature=0.0, max_tokens=args.max_tokens),
        num_speculative_tokens=settings.engine.num_speculative_tokens,
    )
    threads = settings.engine.threads or default_threads()

    async def run() -> dict[str, Any]:
        async with running(settings) as engine:
            return await measure_with_peers(job, specs, threads, engine.client, engine.tokenizer)

    report = asyncio.run(run())
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    return report


def _paths(text: str) -> dict[str, Path]:
    return {kind: Path(path) for kind, _, path in (part.partition("=") for part in listed(text))}


def _exported(settings: Settings) -> Path:
    """Return the configured model as a folder of safetensors, which is made at first use."""
    ensure_model(settings)
    model = settings.engine.model
    return export_model(resolve(model, settings.engine.model_dir), cache_directory() / "exports" / Path(model).name)


if __name__ == "__main__":
    main()
