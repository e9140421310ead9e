"""Is structured output valid, the same with and without speculation, and how much faster with?

Usage: python -m benchmarks.structured_output --prompts FILE [--generated 50] [--timed 10] [--repeats 3]
           [--temperature 0.0] [--max-tokens 1024] [--proposers NAME,...] [--model NAME]
           [--json OUT]

Asked are the prompts of FILE's category `json`, with schemas written for them, and prompts for generated schemas. Each
is answered once with speculation and once without, same seed; answers are checked with the jsonschema library. Then
the JSON prompts and the first `--timed` generated ones are timed: one request at a time, on and off taking turns, who
goes first changing by repeat. Every repeat has tenant scopes of its own, so no answer is remembered from another.
Tokens per second are output tokens over the sum of latencies, prefill included.
"""

import argparse
import asyncio
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jsonschema

from benchmarks.structured_schemas import BY_PROMPT, OTHER, Schema, generated
from prolepsis.core.config import DEFAULT_MODEL, EngineConfig
from prolepsis.core.requests import GenerateRequest, GrammarSpec, SamplingParams, SpeculationChoice
from prolepsis.core.terminal.output import quiet_logs
from prolepsis.engine.start import Running, start_engine
from prolepsis.lab.bench.prompts import load_prompts
from prolepsis.lab.bench.provenance import provenance
from prolepsis.server.cli.ask import TimedAnswer, ask


@dataclass(frozen=True, slots=True)
class Task:
    """A prompt and what its answer must look like."""

    id: str
    text: str
    schema: Schema


@dataclass(frozen=True, slots=True)
class Run:
    """One task answered once."""

    answer: TimedAnswer
    fault: str | None
    """Why the answer is not valid; "length" where it was cut."""


def tasks_of(prompts: Path, num_generated: int) -> list[Task]:
    found = [Task(p.id, p.text, BY_PROMPT.get(p.id, OTHER)) for p in load_prompts(prompts, ("json",))]
    for i in range(num_generated):
        schema = generated(i)
        text = f"Make up an example that fits this JSON schema. Answer with JSON only.\n{json.dumps(schema)}"
        found.append(Task(f"generated-{i}", text, schema))
    return found


class RequestContext:
    """Sends tasks to one engine."""

    def __init__(self, engine: Running, params: SamplingParams) -> None:
        self._engine = engine
        self._params = params
        self._count = 0

    async def run(self, task: Task, scope: str, *, speculate: bool) -> Run:
        self._count += 1
        tokenizer = self._engine.tokenizer
        request = GenerateRequest(
            f"{self._count}",
            tuple(tokenizer.apply_chat_template([{"role": "user", "content": task.text}])),
            self._params,
            cache_salt=f"{scope} {speculate}",
            grammar=GrammarSpec("json_schema", json.dumps(task.schema)),
            speculation=SpeculationChoice("auto" if speculate else "off"),
        )
        answer = await ask(self._engine.client, request)
        return Run(answer, self._fault(task, answer))

    def _fault(self, task: Task, answer: TimedAnswer) -> str | None:
        if len(answer.token_ids) == self._params.max_tokens:
            return "length"
        try:
            jsonschema.validate(json.loads(self._engine.tokenizer.decode(answer.token_ids)), task.schema)
        except (ValueError, jsonschema.ValidationError) as error:
            return str(error).partition("\n")[0]
        return None


async def check(context: RequestContext, tasks: Sequence[Task]) -> dict[str, object]:
    """Return how many answers are valid, cut and different with and without speculation."""
    runs = [
        (await context.run(t, "check", speculate=True), await context.run(t, "check", speculate=False)) for t in tasks
    ]
    faults = {t.id: on.fault for t, (on, _) in zip(tasks, runs, strict=True) if on.fault}
    cut = [task_id for task_id, fault in faults.items() if fault == "length"]
    return {
        "tasks": len(tasks),
        "valid": len(tasks) - len(faults),
        "cut_by_length": cut,
        "invalid": {task_id: fault for task_id, fault in faults.items() if fault != "length"},
        "different": [
            t.id for t, (on, off) in zip(tasks, runs, strict=True) if on.answer.token_ids != off.answer.token_ids
        ],
        "output_tokens": sum(len(on.answer.token_ids) for on, _ in runs),
    }


async def measure(context: RequestContext, tasks: Sequence[Task], repeats: int) -> dict[str, object]:
    """Return tokens per second on and off and their ratio, median and range over repeats."""
    rates: dict[bool, list[float]] = {True: [], False: []}
    lengths: list[float] = []
    for repeat in range(repeats):
        seconds, tokens = {True: 0.0, False: 0.0}, {True: 0, False: 0}
        steps = 0
        for task in tasks:
            for speculate in (True, False) if repeat % 2 else (False, True):
                run = await context.run(task, f"repeat {repeat}", speculate=speculate)
                seconds[speculate] += run.answer.seconds
                tokens[speculate] += len(run.answer.token_ids)
                steps += run.answer.stats.num_steps if speculate else 0
        for speculate in (True, False):
            rates[speculate].append(tokens[speculate] / seconds[speculate])
        lengths.append(tokens[True] / steps)
    speedups = [on / off for on, off in zip(rates[True], rates[False], strict=True)]
    figures = {"on": rates[True], "off": rates[False], "speedup": speedups, "tokens_per_step": lengths}
    return {name: summary(values) for name, values in figures.items()}


def summary(values: Sequence[float]) -> dict[str, float]:
    found = {"median": statistics.median(values), "min": min(values), "max": max(values)}
    return {name: round(value, 3) for name, value in found.items()}


async def serve(args: argparse.Namespace) -> dict[str, object]:
    tasks = tasks_of(args.prompts, args.generated)
    params = SamplingParams(temperature=args.temperature, seed=args.seed, max_tokens=args.max_tokens)
    config = EngineConfig(model=args.model)
    if args.proposers:
        config = config.model_copy(update={"proposers": tuple(args.proposers.split(","))})
    engine = start_engine(config)
    try:
        context = RequestContext(engine, params)
        checked = await check(context, tasks)
        timed = tasks[: len(tasks) - args.generated + args.timed]
        speed = await measure(context, timed, args.repeats)
        exactness = engine.client.info.exactness
    finally:
        await engine.client.close()
    return {"exactness": exactness, "checked": checked, "timed_tasks": len(timed), "tokens_per_s": speed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--generated", type=int, default=50)
    parser.add_argument("--timed", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--max-tokens", type=int, default=1024)
    parser.add_argument("--proposers", help="loaded ones, separated by commas; default: the engine's")
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    quiet_logs()
    found = asyncio.run(serve(args))
    print(json.dumps(found, indent=2))
    if args.json:
        document = {"provenance": provenance({"sampling": args.seed}, {}), "temperature": args.temperature, **found}
        args.json.write_text(json.dumps(document, indent=2))


if __name__ == "__main__":
    main()
