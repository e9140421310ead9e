"""Does what `tune` advises hold on the real engine? The promise beside what is measured, before and after, in turns.

Usage: python -m benchmarks.tune_promise FOLDER [--at-once 2] [--seconds 60] [--rounds 3] [--max-tokens 192]
    [--model MODEL] [--json OUT]

FOLDER: as `prolepsis rehearse measure` of this model wrote it on this machine, with `auto-N.jsonl.gz` for N at once.
The default and the settings are tuned for latency. Each round records both arms, each with an engine that has learned
nothing yet and the same requests; the arm that is first changes from round to round.
"""

import asyncio
import random
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.script import keep, options
from prolepsis.control.policy.model import Terms
from prolepsis.core.config import EngineConfig
from prolepsis.core.requests import GenerateRequest, SpecMode, SpeculationChoice
from prolepsis.core.terminal.output import quiet_logs
from prolepsis.engine.build import build_engine
from prolepsis.engine.models.load import LoadedModel, load_model
from prolepsis.engine.thread import ThreadEngineClient
from prolepsis.lab.measure.arrivals import LatencyGoal, TrafficLoad
from prolepsis.lab.measure.prompts import encode_prompts, load_prompts
from prolepsis.lab.rehearsal.calibrate import OfferedLoad, record
from prolepsis.lab.rehearsal.rehearsal import RehearsedServer
from prolepsis.lab.rehearsal.trace import read_trace
from prolepsis.lab.rehearsal.tune import TuningTrial, tune
from prolepsis.lab.rehearse import machine_of


@dataclass(frozen=True, slots=True)
class TermedLoad(OfferedLoad):
    """A load whose requests have terms of a policy."""

    terms: Terms = field(default_factory=Terms)

    def requests(self, mode: SpecMode, name: str) -> Iterator[tuple[float, GenerateRequest]]:
        terms = self.terms
        choice = SpeculationChoice(
            mode if terms.mode == "on" else "off",
            num_speculative_tokens=terms.num_speculative_tokens,
            proposers=terms.proposers,
        )
        for at, request in OfferedLoad.requests(self, mode, name):
            yield at, replace(request, speculation=choice)


def arm(trial: TuningTrial, load: OfferedLoad, config: EngineConfig, target: LoadedModel) -> float:
    """Return the mean seconds of a request, end to end, by the terms and settings of a trial."""
    engine = trial.machine.engine
    names = ("max_requests", "max_step_tokens", "chunk_limit_ms")
    applied = config.model_copy(update={name: getattr(engine, name) for name in names})
    termed = TermedLoad(load.load, load.prompts, load.seconds, load.max_tokens, terms=trial.policy.default_terms)

    async def recorded() -> float:
        client = ThreadEngineClient(build_engine(applied, target=target))
        try:
            await record(client, replace(termed, seconds=1.0), "auto", "warm-up")
            lines = (await record(client, replace(termed, at_least=20), "auto", "recorded")).lines
            return statistics.mean(line.measured.total_s for line in lines if line.measured is not None)
        finally:
            await client.close()

    return asyncio.run(recorded())


if __name__ == "__main__":
    args = options(__doc__, "folder", at_once=2, seconds=60.0, rounds=3, max_tokens=192, model=str)
    quiet_logs("error")
    config = EngineConfig(**({"model": args.model} if args.model else {}))
    trace = read_trace(Path(args.folder, f"auto-{args.at_once}.jsonl.gz"))
    setting = RehearsedServer(machine=machine_of(Path(args.folder, "machine.json")))
    tuning = tune(trace, setting, "latency", LatencyGoal(), with_default=True)
    print(*(f"{name}: {advised.mode}, {advised.why}" for name, advised in tuning.advice.items()), sep="\n")
    print(f"advised: {tuning.best.changed or 'nothing'}, settings {tuning.settings}")
    target = load_model(config)
    prompts = encode_prompts(load_prompts(None), target.tokenizer)
    load = OfferedLoad(TrafficLoad(at_once=args.at_once), prompts, args.seconds, args.max_tokens)
    gains = []
    for number in range(args.rounds if tuning.promise else 0):
        arms = random.Random(number).sample([tuning.trials[0], tuning.best], 2)
        took = {id(trial): arm(trial, load, config, target) for trial in arms}
        gains.append(took[id(tuning.trials[0])] / took[id(tuning.best)])
    print(f"promised: {tuning.promise}\nmeasured: {', '.join(f'{gain:.2f}x' for gain in gains) or 'nothing'}")
    keep(args, promise=tuning.promise, measured=gains, advice={name: str(one) for name, one in tuning.advice.items()})
