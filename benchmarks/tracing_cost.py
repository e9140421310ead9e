"""What do traces cost? Processor time of a request without traces, with shares of them, and of keeping rounds.

Usage: python -m benchmarks.tracing_cost [--requests 300] [--tokens 64] [--repeats 5] [--json OUT]

- rounds: microseconds of `keep_rounds` a step at 1, 8 and 32 samples that verify a chain of 3, for requests that keep
  rounds and for those that do not. The list of rounds is emptied between steps, so none is past the bound.
- request: milliseconds of processor time of the whole process, exporting included, for one answer whose engine says
  scripted tokens without delay, two a round; the receiver is a process of its own. `share`: of sampled requests. Arms
  take turns.
"""

import asyncio
import multiprocessing
import statistics
import time
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, HTTPServer
from multiprocessing.connection import Connection

import httpx

from benchmarks.charging_cost import STEP, rows
from benchmarks.script import keep, options
from prolepsis.control.store.store import unrecorded
from prolepsis.control.web.context import Context
from prolepsis.core.audit_event import discard
from prolepsis.core.config import ServerConfig
from prolepsis.core.events import Event, Finished, FinishReason, Tokens
from prolepsis.core.requests import GenerateRequest
from prolepsis.core.rounds import MAX_ROUNDS, Round
from prolepsis.core.stats import EffectiveMode, ProposerCounts, RequestStats
from prolepsis.core.telemetry.logs import configure_logs
from prolepsis.core.telemetry.metrics import Metrics
from prolepsis.engine.accounting import keep_rounds
from prolepsis.engine.rows import SampledTokens
from prolepsis.server.app import build
from tests.fake_client import INFO, FakeEngineClient
from tests.server.fakes import ByteTokenizer

SAMPLES = (1, 8, 32)
ROUNDS = [Round(0.1, 0.2, 0.01, 0.07, 0.01, 0, 2 * i, "suffix", "", 3, 3, 1, 2) for i in range(MAX_ROUNDS)]
"""Made beforehand: what the engine takes to note them is measured by itself."""
Figures = dict[str, float]


def figures(runs: list[float]) -> Figures:
    return {"median": statistics.median(runs), "least": min(runs), "most": max(runs)}


def microseconds(num_samples: int, *, keeps: bool, steps: int) -> float:
    made = rows(num_samples, 3)
    for row in made:
        row.sequence.request.source = _keeping(row.sequence.request.source, keeps=keeps)
    sampled = [SampledTokens((1, 1), (0,))] * num_samples
    started = time.process_time()
    for _ in range(steps):
        keep_rounds(made, sampled, STEP, (1.0, 1.01), {})
        for row in made:
            row.sequence.request.stats.rounds.clear()
    whole = time.process_time() - started
    started = time.process_time()
    for _ in range(steps):
        for row in made:
            row.sequence.request.stats.rounds.clear()
    return 1e6 * (whole - (time.process_time() - started)) / steps


def _keeping(source: GenerateRequest, *, keeps: bool) -> GenerateRequest:
    return GenerateRequest(source.request_id, source.prompt_token_ids, source.params, keeps_rounds=keeps)


def script(request: GenerateRequest) -> Iterable[Event]:
    """One round of two tokens a step; the engine's own cost is measured apart."""
    num_tokens = request.params.max_tokens
    steps = range(0, num_tokens, 2)
    for i in steps:
        reason: FinishReason | None = "length" if i + 2 >= num_tokens else None
        yield Tokens(request.request_id, 0, (97, 98), finish_reason=reason, position=i)
    stats = RequestStats(
        num_prompt_tokens=9,
        num_output_tokens=num_tokens,
        num_steps=len(steps),
        proposers={"suffix": ProposerCounts(len(steps), 3 * len(steps), len(steps))},
        arrival=time.monotonic(),
        first_token_s=0.01,
        total_s=1.0,
        mode=EffectiveMode("on", "speculating", 1),
    )
    if request.keeps_rounds:
        stats.rounds = ROUNDS[: len(steps)]
    yield Finished(request.request_id, stats)


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


def receive(port: Connection) -> None:
    server = HTTPServer(("127.0.0.1", 0), Receiver)
    port.send(server.server_port)
    server.serve_forever()


async def milliseconds(config: ServerConfig, num_requests: int, num_tokens: int) -> float:
    """Return the processor time of a request, with what is left to be sent."""
    client = FakeEngineClient(script, INFO)
    context = Context(config=config, client=client, metrics=Metrics(), store=unrecorded(), emit=discard)
    app = build(context, ByteTokenizer(chat_template=None))
    body = {"model": INFO.model, "prompt": [1] * 9, "max_tokens": num_tokens, "temperature": 0.7}
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        async with app.router.lifespan_context(app):
            for _ in range(20):
                await http.post("/v1/completions", json=body)
            started = time.process_time()
            for _ in range(num_requests):
                reply = await http.post("/v1/completions", json=body)
                assert reply.status_code == 200, reply.text
        return 1e3 * (time.process_time() - started) / num_requests


def measure(num_requests: int, num_tokens: int, repeats: int) -> dict[str, dict[str, Figures]]:
    found: dict[str, dict[str, Figures]] = {"rounds": {}, "request": {}}
    for keeps in (True, False):
        for number in SAMPLES:
            runs = [microseconds(number, keeps=keeps, steps=3000) for _ in range(repeats)]
            found["rounds"][f"{number} {'kept' if keeps else 'not kept'}"] = figures(runs)
    here, there = multiprocessing.Pipe()
    receiver = multiprocessing.get_context("fork").Process(target=receive, args=(there,), daemon=True)
    receiver.start()
    url = f"http://127.0.0.1:{here.recv()}"
    arms = {"off": ServerConfig(traces="none", replay_sample=0.0)}
    for share in (0.0, 0.01, 1.0):
        arms[f"share {share:g}"] = ServerConfig(traces=url, trace_sample=share, replay_sample=0.0)
    runs_of: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(repeats):
        for name, config in arms.items():
            runs_of[name].append(asyncio.run(milliseconds(config, num_requests, num_tokens)))
    receiver.terminate()
    found["request"] = {name: figures(runs) for name, runs in runs_of.items()}
    return found


def main() -> None:
    args = options(__doc__, requests=300, tokens=64, repeats=5)
    configure_logs("error")
    found = measure(args.requests, args.tokens, args.repeats)
    for part, unit in (("rounds", "us a step"), ("request", "ms")):
        print(f"{part:<16}{unit:>12}{'least':>10}{'most':>10}")
        for name, one in found[part].items():
            print(f"{name:<16}{one['median']:>12.3f}{one['least']:>10.3f}{one['most']:>10.3f}")
    keep(args, figures=found)


if __name__ == "__main__":
    main()
