"""What do metrics cost? Their processor time as a share of the time of engine steps, at 1 and 16 requests at once.

Usage: python -m benchmarks.metrics_cost [--model NAME] [--batches 1 16] [--tokens 96] [--repeats 5] [--json OUT]

Each run decodes prompts with the default proposers. All that metrics do is timed with the clock of its thread: for each
step and each ended request in the engine, for each arrival of tokens and each ended request in the server. The clock's
own time counts as theirs. It is divided by the wall time of steps, and by the processor time of the engine's thread,
which works all through a forward on the processor and which other processes do not stretch. A scrape is timed apart,
with the series that the runs left.
"""

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from benchmarks.script import keep, options
from prolepsis.core.config import EngineConfig
from prolepsis.core.ended import PromptEnded, RequestAbout, RequestEnded
from prolepsis.core.engine_client import EngineClient
from prolepsis.core.events import Terminal, Tokens
from prolepsis.core.figures import Figure, RequestDone, StepDone
from prolepsis.core.requests import GenerateRequest, SamplingParams
from prolepsis.core.stats import RequestStats
from prolepsis.core.telemetry.metrics import Metrics
from prolepsis.core.token_intervals import TokenIntervals
from prolepsis.engine.start import start_engine

PROMPT_TOKENS = 48
Result = TypeVar("Result")


@dataclass(slots=True)
class Spent:
    """Seconds of processor time of metrics, and wall seconds of the steps that they report."""

    metrics: float = 0.0
    steps: float = 0.0
    first: float | None = None
    """What the engine's thread had taken after its first step."""
    last: float = 0.0
    num_steps: int = 0
    num_requests: int = 0

    def time(self, work: Callable[[], Result]) -> Result:
        started = time.thread_time()
        result = work()
        self.metrics += time.thread_time() - started
        return result


class TimedMetrics:
    """An engine's observer that times what `Metrics` does."""

    def __init__(self) -> None:
        self.metrics = Metrics()
        self.spent = Spent()

    def observe(self, figure: Figure) -> None:
        self.spent.time(lambda: self.metrics.observe(figure))
        if isinstance(figure, RequestDone):
            self.spent.num_requests += 1
        elif isinstance(figure, StepDone):
            self.spent.steps += sum(figure.seconds.values())
            self.spent.num_steps += 1
            self.spent.last = time.thread_time()
            self.spent.first = self.spent.last if self.spent.first is None else self.spent.first


def _ended(request: GenerateRequest, stats: RequestStats, intervals: TokenIntervals) -> RequestEnded:
    about = RequestAbout(
        answer_id="a", tenant="", key_id="", tier="standard", route="/v1/completions", model="m", policy_rule="chat"
    )
    prompt = PromptEnded(
        request=request,
        end="finished",
        error=None,
        stats=stats,
        num_shown_tokens=stats.num_output_tokens,
        answer="complete",
        tokens=(),
        finish_reasons=("length",),
        delivery={},
        intervals=intervals,
    )
    return RequestEnded(about=about, end="finished", error=None, prompts=(prompt,))


async def _answer(client: EngineClient, request: GenerateRequest, observer: TimedMetrics, spent: Spent) -> None:
    intervals = TokenIntervals()
    async for event in client.generate(request):
        if isinstance(event, Tokens):
            index, number = event.index, len(event.token_ids)
            spent.time(lambda: intervals.see(index, number, time.perf_counter()))  # noqa: B023
        elif isinstance(event, Terminal):
            ended = _ended(request, event.stats, intervals)
            spent.time(lambda: observer.metrics.requests.ended(ended))  # noqa: B023


async def _measure(args: argparse.Namespace) -> dict[str, object]:
    observer = TimedMetrics()
    client = start_engine(EngineConfig(model=args.model), observer).client
    found: dict[str, object] = {}
    for batch in args.batches:
        runs = [await _run(client, observer, batch, args.tokens, run) for run in range(-1, args.repeats)][1:]
        found[str(batch)] = {
            name: {
                "median": statistics.median(run[name] for run in runs),
                "least": min(run[name] for run in runs),
                "most": max(run[name] for run in runs),
            }
            for name in runs[0]
        }
    started = time.thread_time()
    text = observer.metrics.exposition()
    found["scrape_ms"] = 1e3 * (time.thread_time() - started)
    found["scrape_series"] = sum(not line.startswith(b"#") for line in text.splitlines())
    await client.close()
    return found


async def _run(client: EngineClient, observer: TimedMetrics, batch: int, num_tokens: int, run: int) -> dict[str, float]:
    observer.spent, server = Spent(), Spent()
    requests = [
        GenerateRequest(
            f"{batch}-{run}-{number}",
            tuple(100 + (7 * number + place) % 400 for place in range(PROMPT_TOKENS)),
            SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True),
            cache_salt=str(run),
            traffic_class="completions/standard/free/short",
        )
        for number in range(batch)
    ]
    await asyncio.gather(*(_answer(client, request, observer, server) for request in requests))
    spent = observer.spent
    return {
        "percent_of_wall": 100 * (spent.metrics + server.metrics) / spent.steps,
        "percent_of_processor": 100 * (spent.metrics + server.metrics) / (spent.last - (spent.first or 0.0)),
        "engine_us_per_step": 1e6 * spent.metrics / spent.num_steps,
        "server_us_per_request": 1e6 * server.metrics / batch,
        "step_ms": 1e3 * spent.steps / spent.num_steps,
    }


def main() -> None:
    args = options(__doc__, model=EngineConfig().model, batches=[1, 16], tokens=96, repeats=5)
    results = asyncio.run(_measure(args))
    print(json.dumps(results, indent=2))
    keep(args, results=results)


if __name__ == "__main__":
    main()
