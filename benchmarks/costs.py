"""What do control's parts take of the processor? Steps' accounts, records of requests, metrics and traces.

Usage: python -m benchmarks.costs [steps|records|metrics|traces ...] [--repeats 5] [--model NAME] [--json OUT]

- steps: microseconds a step of `charge`, for samples that decode plainly or verify a chain of 3, with 200 tokens of
  context, and of `keep_rounds`. The list of rounds is emptied between steps, so none is past the bound.
- records: microseconds a request of each part that counts or keeps it, for requests of 16 tenants, 4 routes and 24
  traffic classes, with two proposers. `store` is the writer's thread with SQLite; all else is the event loop's.
- metrics: per cent of the wall time of steps that all metrics take by the clock of their thread, in the engine for each
  step and ended request, in the server for each arrival of tokens and ended request; the default proposers draft.
  The clock's own time counts as theirs. Milliseconds of a scrape of the series that the run left.
- traces: milliseconds a request of the whole process, exporting included, without traces and with shares of them. The
  engine says 64 scripted tokens without delay, two a round; the receiver is a process of its own. Arms take turns.

Only `metrics` loads a model. Medians, least and most of the repeats.
"""

import asyncio
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import httpx2
from prometheus_client import CollectorRegistry

from benchmarks.script import keep, options
from prolepsis.control.cost.runtime import CostFeature
from prolepsis.control.store.store import open_store, unrecorded
from prolepsis.control.traffic.feature import TrafficFeature
from prolepsis.control.traffic.recent import RecentFeature
from prolepsis.control.web.context import Context
from prolepsis.core.audit_event import discard
from prolepsis.core.config import EngineConfig, ServerConfig
from prolepsis.core.ended import Assignment, RequestEnded
from prolepsis.core.engine_client import EngineClient, EngineHealth
from prolepsis.core.events import Event, Finished, FinishReason, Terminal, Tokens
from prolepsis.core.figures import Figure, RequestDone, StepDone
from prolepsis.core.requests import GenerateRequest, SamplingParams
from prolepsis.core.rounds import MAX_ROUNDS, Round
from prolepsis.core.stats import DeviceSeconds, EffectiveMode, ProposerCounts, RequestStats
from prolepsis.core.telemetry.logs import configure_logs
from prolepsis.core.telemetry.metrics import Metrics
from prolepsis.core.token_intervals import TokenIntervals
from prolepsis.engine.accounting import charge, keep_rounds
from prolepsis.engine.drafting.cost import PROFILE_CONTEXTS, PROFILE_TOKENS, CostCurve
from prolepsis.engine.drafting.draft import chain
from prolepsis.engine.request import open_request
from prolepsis.engine.rows import Row, SampledTokens
from prolepsis.engine.start import start_engine
from prolepsis.engine.timings import StepTiming
from prolepsis.server.app import build
from prolepsis.server.status.recorder import Recorder
from tests.fake_client import INFO, FakeEngineClient
from tests.ops.tracing.ended import prompt_ended, request_ended
from tests.server.fakes import ByteTokenizer

Costs = dict[str, float]
Result = TypeVar("Result")
SAMPLES, CONTEXT, NUM_STEPS = (1, 8, 32), 200, 3200
STEP = StepTiming(schedule=1e-4, propose=1e-3, forward=1e-2, verify=1e-3, commit=1e-4, learn=1e-4)
CURVE = CostCurve(
    PROFILE_TOKENS,
    PROFILE_CONTEXTS,
    [[10.0 + 0.1 * size + 0.001 * context for context in PROFILE_CONTEXTS] for size in PROFILE_TOKENS],
)
ROUTES = ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/api/chat")
NUM_RECORDS = 5000
AT_ONCE, NUM_DECODED = (1, 16), 96
SHARES, NUM_TRACED, NUM_TOKENS = (0.0, 0.01, 1.0), 300, 64
ROUNDS = [Round(0.1, 0.2, 0.01, 0.07, 0.01, 0, 2 * i, "suffix", "", 3, 3, 1, 2) for i in range(MAX_ROUNDS)]
"""Made beforehand: what the engine takes to note them is measured by itself."""


def steps(repeats: int, model: str) -> list[Costs]:
    return [
        {f"charge {nodes} drafted of {samples}": _charged(samples, nodes) for nodes in (0, 3) for samples in SAMPLES}
        | {f"rounds of {samples}": _rounds_kept(samples) for samples in SAMPLES}
        for _ in range(repeats)
    ]


def _rows(num_samples: int, num_nodes: int) -> list[Row]:
    made = []
    for number in range(num_samples):
        source = GenerateRequest(f"r{number}", (1,) * 10, SamplingParams(), keeps_rounds=True)
        [sample] = open_request(source, 0.0, number, (), None).sequences
        sample.tokens += [1] * (CONTEXT - 9 + num_nodes)
        draft = chain((1,) * num_nodes, "suffix") if num_nodes else None
        made.append(Row(sample, CONTEXT, 1, draft, None if draft else "no_draft"))
    return made


def _charged(num_samples: int, num_nodes: int) -> float:
    rows, began = _rows(num_samples, num_nodes), time.process_time()
    for _ in range(NUM_STEPS):
        charge(rows, STEP, CURVE)
    return 1e6 * (time.process_time() - began) / NUM_STEPS


def _rounds_kept(num_samples: int) -> float:
    rows, sampled = _rows(num_samples, 3), [SampledTokens((1, 1), (0,))] * num_samples
    began = time.process_time()
    for _ in range(NUM_STEPS):
        keep_rounds(rows, sampled, STEP, (1.0, 1.01), {})
        _empty(rows)
    whole, began = time.process_time() - began, time.process_time()
    for _ in range(NUM_STEPS):
        _empty(rows)
    return 1e6 * (whole - (time.process_time() - began)) / NUM_STEPS


def _empty(rows: list[Row]) -> None:
    for row in rows:
        row.sequence.request.stats.rounds.clear()


def records(repeats: int, model: str) -> list[Costs]:
    requests = [_request(number) for number in range(NUM_RECORDS)]
    return [_recorded(requests) for _ in range(repeats)]


def _request(number: int) -> RequestEnded:
    """Return a request that has ended; they differ as those of traffic do."""
    prompt, route = prompt_ended(f"r{number}"), number % len(ROUTES)
    counts = {name: ProposerCounts(4, 12, 7, [[4, 3], [4, 2], [4, 2]]) for name in ("suffix", "head")}
    device = DeviceSeconds(0.01, 0.2, 0.03, 0.01, 0.005, predicted_plain=0.3 + 1e-4 * (number % 97))
    stats = replace(prompt.stats, proposers=counts, device=device, plain_steps={"no_draft": 3})
    request = replace(prompt.request, traffic_class=f"{route}/standard/free/short/{number % 6}")
    arm = Assignment("chat@1", 1, 2, "canary" if number % 2 else "unassigned", "on", 0.5)
    tenant, prompts = f"t{number % 16}", (replace(prompt, stats=stats, request=request),)
    about = replace(request_ended().about, tenant=tenant, route=ROUTES[route], assignment=arm, is_evidence=True)
    return RequestEnded(about=about, end="finished", error=None, prompts=prompts, ended_at=prompt.began_at + 1.25)


def _recorded(requests: list[RequestEnded]) -> Costs:
    with TemporaryDirectory() as folder:
        registry = CollectorRegistry()
        store, metrics = open_store(f"sqlite:///{Path(folder)}/store.sqlite", registry), Metrics()
        parts: dict[str, Callable[[RequestEnded], object]] = {
            "metrics of the engine": lambda each: metrics.observe(RequestDone(each.prompts[0].stats)),
            "metrics of requests": metrics.requests.ended,
            "cost": CostFeature(registry, store.database).on_request_end,
            "traffic": TrafficFeature(lambda: EngineHealth(alive=True, ready=True, detail="")).on_request_end,
            "recent": RecentFeature(store).on_request_end,
        }
        spent = {name: _microseconds(part, requests) for name, part in parts.items()}
        began = time.process_time()
        spent["record"] = _microseconds(Recorder(store, 1.0, lambda: None, lambda _: True).on_request_end, requests)
        store.close()
        return {**spent, "store": 1e6 * (time.process_time() - began) / len(requests) - spent["record"]}


def _microseconds(part: Callable[[RequestEnded], object], requests: list[RequestEnded]) -> float:
    began = time.thread_time()
    for each in requests:
        part(each)
    return 1e6 * (time.thread_time() - began) / len(requests)


class TimedMetrics:
    """An engine's observer that times what `Metrics` does, and keeps the wall seconds of the steps."""

    def __init__(self) -> None:
        self.metrics = Metrics()
        self.in_engine, self.in_server, self.steps = 0.0, 0.0, 0.0

    def observe(self, figure: Figure) -> None:
        began = time.thread_time()
        self.metrics.observe(figure)
        self.in_engine += time.thread_time() - began
        if isinstance(figure, StepDone):
            self.steps += sum(figure.seconds.values())

    def serve(self, work: Callable[[], Result]) -> Result:
        began = time.thread_time()
        result = work()
        self.in_server += time.thread_time() - began
        return result


def metrics(repeats: int, model: str) -> list[Costs]:
    return asyncio.run(_metrics(repeats, model))


async def _metrics(repeats: int, model: str) -> list[Costs]:
    observer = TimedMetrics()
    client = start_engine(EngineConfig(model=model), observer).client
    found = []
    for run in range(-1, repeats):  # the first warms up
        costs = {f"per cent, {number} at once": await _share(client, observer, number, run) for number in AT_ONCE}
        began = time.thread_time()
        text = observer.metrics.exposition()
        costs["ms of a scrape"] = 1e3 * (time.thread_time() - began)
        costs["series"] = sum(not line.startswith(b"#") for line in text.splitlines())
        found.append(costs)
    await client.close()
    return found[1:]


async def _share(client: EngineClient, observer: TimedMetrics, number: int, run: int) -> float:
    observer.in_engine = observer.in_server = observer.steps = 0.0
    params = SamplingParams(temperature=0.0, max_tokens=NUM_DECODED, ignore_eos=True)
    requests = [
        GenerateRequest(
            f"{number}-{run}-{i}",
            tuple(100 + (7 * i + place) % 400 for place in range(48)),
            params,
            cache_salt=str(run),
            traffic_class="completions/standard/free/short",
        )
        for i in range(number)
    ]
    await asyncio.gather(*(_answer(client, request, observer) for request in requests))
    return 100 * (observer.in_engine + observer.in_server) / observer.steps


async def _answer(client: EngineClient, request: GenerateRequest, observer: TimedMetrics) -> None:
    intervals = TokenIntervals()
    async for event in client.generate(request):
        if isinstance(event, Tokens):
            index, count = event.index, len(event.token_ids)
            observer.serve(lambda: intervals.see(index, count, time.perf_counter()))  # noqa: B023
        elif isinstance(event, Terminal):
            prompt = replace(prompt_ended(), request=request, stats=event.stats, intervals=intervals)
            ended = request_ended(prompt, trace=None)
            observer.serve(lambda: observer.metrics.requests.ended(ended))  # noqa: B023


def traces(repeats: int, model: str) -> list[Costs]:
    here, there = multiprocessing.Pipe()
    receiver = multiprocessing.get_context("fork").Process(target=_receive, args=(there,), daemon=True)
    receiver.start()
    url = f"http://127.0.0.1:{here.recv()}"
    arms = {"ms without": ServerConfig(traces="none", replay_sample=0.0)}
    for share in SHARES:
        arms[f"ms at a share of {share:g}"] = ServerConfig(traces=url, trace_sample=share, replay_sample=0.0)
    found = [{name: asyncio.run(_traced(config)) for name, config in arms.items()} for _ in range(repeats)]
    receiver.terminate()
    return found


def _script(request: GenerateRequest) -> Iterable[Event]:
    """One round of two tokens a step; the engine's own cost is measured apart."""
    num_steps = NUM_TOKENS // 2
    for i in range(num_steps):
        reason: FinishReason | None = "length" if i == num_steps - 1 else None
        yield Tokens(request.request_id, 0, (97, 98), finish_reason=reason, position=2 * i)
    stats = RequestStats(
        num_prompt_tokens=9,
        num_output_tokens=NUM_TOKENS,
        num_steps=num_steps,
        proposers={"suffix": ProposerCounts(num_steps, 3 * num_steps, num_steps)},
        arrival=time.monotonic(),
        first_token_s=0.01,
        total_s=1.0,
        mode=EffectiveMode("on", "speculating", 1),
    )
    if request.keeps_rounds:
        stats.rounds = ROUNDS[:num_steps]
    yield Finished(request.request_id, stats)


class Receiver(BaseHTTPRequestHandler):
    """Takes what is exported."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def _receive(port: Connection) -> None:
    server = HTTPServer(("127.0.0.1", 0), Receiver)
    port.send(server.server_port)
    server.serve_forever()


async def _traced(config: ServerConfig) -> float:
    """Return the processor time of a request, with what is left to be sent."""
    client = FakeEngineClient(_script, INFO)
    context = Context(config=config, client=client, metrics=Metrics(), store=unrecorded(), emit=discard)
    app = build(context, ByteTokenizer(chat_template=None))
    body = {"model": INFO.model, "prompt": [1] * 9, "max_tokens": NUM_TOKENS, "temperature": 0.7}
    transport = httpx2.ASGITransport(app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as http:
        async with app.router.lifespan_context(app):
            for _ in range(20):
                await http.post("/v1/completions", json=body)
            began = time.process_time()
            for _ in range(NUM_TRACED):
                (await http.post("/v1/completions", json=body)).raise_for_status()
        return 1e3 * (time.process_time() - began) / NUM_TRACED


PARTS = {part.__name__: part for part in (steps, records, metrics, traces)}


def main() -> None:
    args = options(__doc__, "parts*", repeats=5, model=EngineConfig().model)
    configure_logs("error")
    found: dict[str, dict[str, Costs]] = {}
    for name in args.parts or PARTS:
        runs = PARTS[name](args.repeats, args.model)
        found[name] = {}
        for cost in runs[0]:
            values = [run[cost] for run in runs]
            found[name][cost] = {"median": statistics.median(values), "least": min(values), "most": max(values)}
            print(f"{name:<8} {cost:<24}" + "".join(f"{value:>10.3f}" for value in found[name][cost].values()))
    keep(args, costs=found)


if __name__ == "__main__":
    main()
