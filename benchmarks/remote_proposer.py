"""Is an engine with a remote proposer ever slower than without, and what becomes of drafts that come late?

Usage: python -m benchmarks.remote_proposer [--latency-ms 5,50] [--concurrency 1,4] [--repeats 5] [--tokens 96]
       [--prompts FILE] [--temperature 0] [--wait-ms 0] [--threads N] [--json OUT] [-- propose-server's options]

A propose server, by default of suffixes, runs on this machine behind a proxy that adds the latency to each round trip,
half of it each way; server and proxy take the engine's cores, too. One engine on the default model answers the same
prompts in turns, with the remote proposer and without: `remote` alone against `plain` decoding, and `auto+remote`
against `auto`, all of the engine's own proposers. Told are the ratios of tokens a second of each repeat, the same of
tokens a processor second of engine and server together (which hold on busy cores too, with --threads 1), whether all
outputs are equal, and what became of the drafts that the server was asked for.
"""

import argparse
import asyncio
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import get_args

from prolepsis.core.config import EngineConfig, RemoteProposerTerms
from prolepsis.core.plan import SpecPlan
from prolepsis.core.requests import SamplingParams
from prolepsis.core.rounds import RemoteOutcome
from prolepsis.core.telemetry.logs import configure_logs
from prolepsis.core.telemetry.metrics import Metrics
from prolepsis.engine.start import start_engine
from prolepsis.lab.measure.contenders import AUTO, PLAIN, EngineArm, Run, Schedule, measure
from prolepsis.lab.measure.prompts import EncodedPrompt, encode_prompts, load_prompts
from prolepsis.lab.measure.provenance import provenance
from tests.commands import prolepsis, running

REMOTE, BOTH = "remote", "auto+remote"
AGAINST = {REMOTE: PLAIN, BOTH: AUTO}
READY_S = 120.0
_PIECE = 1 << 16


@dataclass(frozen=True, slots=True)
class Figure:
    """One arm against the same engine without the remote proposer."""

    latency_ms: float
    concurrency: int
    arm: str
    against: str
    rates: list[float]
    """Tokens a second of the arm, by repeat."""
    ratios: list[float]
    cpu_ratios: list[float]
    """Of tokens a processor second."""
    num_different: int
    """Outputs that are not those of plain decoding."""
    outcomes: dict[str, int]
    """Of the drafts asked for while this latency was measured, at all loads and in both arms."""


class Proxy:
    """Passes bytes on in both directions, each piece half of the latency later."""

    def __init__(self, port: int) -> None:
        self.latency_s = 0.0
        self._port = port
        self._running: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        """Listen on a free port, print it, and take latencies in ms from standard input until that ends."""
        server = await asyncio.start_server(self._pass, "127.0.0.1", 0)
        print(server.sockets[0].getsockname()[1], flush=True)
        loop = asyncio.get_running_loop()
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            self.latency_s = float(line) / 1000.0
        server.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind, to = await asyncio.open_connection("127.0.0.1", self._port)
        for source, sink in ((reader, to), (behind, writer)):
            task = asyncio.ensure_future(self._pump(source, sink))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop, due = asyncio.get_running_loop(), 0.0
        with suppress(ConnectionError):
            while data := await reader.read(_PIECE):
                due = max(due, loop.time() + self.latency_s / 2.0)  # in order, whatever the latency changes to
                loop.call_at(due, writer.write, data)
        loop.call_at(max(due, loop.time()), writer.close)


@dataclass(slots=True, kw_only=True)
class CountingArm(EngineArm):
    """Counts the processor seconds of this process and the server's, by round."""

    server: int
    """Its process."""
    latency_ms: float
    """Nothing learned at another latency is used."""
    cpu_s: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    _round: str = ""

    async def begin(self, round_name: str) -> None:
        await EngineArm.begin(self, f"{round_name} {self.latency_ms} ms")
        self._round = round_name

    async def answer(self, prompts: Sequence[EncodedPrompt], run: Run) -> None:
        before = self._now()
        await EngineArm.answer(self, prompts, run)
        self.cpu_s[self._round] += self._now() - before

    def _now(self) -> float:
        times = Path(f"/proc/{self.server}/stat").read_text().rpartition(")")[2].split()[11:13]
        return time.process_time() + sum(map(int, times)) / os.sysconf("SC_CLK_TCK")


@contextmanager
def propose_server(key: Path, options: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Start a propose server and yield its port and its process."""
    command = prolepsis("propose-server", "--listen", "127.0.0.1:0", "--remote-proposer", f"key={key}")
    with (
        tempfile.NamedTemporaryFile() as log,
        running([*command, "--log-json", *options], Path(log.name)) as process,
    ):
        yield _listening(process, Path(log.name)), process.pid


def _listening(process: subprocess.Popen[bytes], log: Path) -> int:
    end = time.monotonic() + READY_S
    while time.monotonic() < end and process.poll() is None:
        lines = [json.loads(line) for line in log.read_text().splitlines(keepends=True) if line.endswith("}\n")]
        for line in lines:
            if line["event"] == "listening":
                return int(line["port"])
        time.sleep(0.1)
    raise SystemExit(f"the propose server did not start:\n{log.read_text()}")


@contextmanager
def proxy(port: int) -> Iterator[subprocess.Popen[str]]:
    """Start a proxy in front of a port; its first line says where it listens."""
    command = [sys.executable, "-m", "benchmarks.remote_proposer", "--proxy", str(port)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:  # noqa: S603  # this module
        yield process
        assert process.stdin is not None
        process.stdin.close()


def outcomes(metrics: Metrics) -> dict[str, int]:
    """Return what became of drafts so far."""
    name = "prolepsis_remote_proposer_drafts_total"
    found = {
        outcome: metrics.registry.get_sample_value(name, {"outcome": outcome}) for outcome in get_args(RemoteOutcome)
    }
    return {outcome: int(number or 0) for outcome, number in found.items()}


async def run(given: argparse.Namespace, key: Path, between: subprocess.Popen[str], server: int) -> list[Figure]:
    """Measure all latencies; raises what an engine raises."""
    assert between.stdin is not None
    assert between.stdout is not None
    config = EngineConfig(
        remote_proposer=RemoteProposerTerms(
            address=f"127.0.0.1:{between.stdout.readline().strip()}", key=key, wait_ms=given.wait_ms
        ),
        max_model_len=4096,
        threads=given.threads,
    )
    metrics = Metrics()
    engine = start_engine(config, metrics)
    prompts = encode_prompts(load_prompts(given.prompts), engine.tokenizer)[: given.number]
    local = tuple(name for name in engine.client.info.proposers if name != REMOTE)
    plans = {
        PLAIN: SpecPlan(1, num_speculative_tokens=0),
        REMOTE: SpecPlan(2, proposers=(REMOTE,)),
        AUTO: SpecPlan(3, proposers=local),
        BOTH: SpecPlan(4, proposers=(*local, REMOTE)),
    }
    params = SamplingParams(temperature=given.temperature, max_tokens=given.tokens)
    seeds = {prompt.id: i for i, prompt in enumerate(prompts)}
    schedule = Schedule(tuple(int(load) for load in given.concurrency.split(",")), given.repeats)
    figures: list[Figure] = []
    for latency_ms in (float(text) for text in given.latency_ms.split(",")):
        between.stdin.write(f"{latency_ms}\n")
        between.stdin.flush()
        before = outcomes(metrics)
        arms = [
            CountingArm(name, plan, engine.client, params, seeds, server=server, latency_ms=latency_ms)
            for name, plan in plans.items()
        ]
        runs = await measure(arms, prompts, schedule, lambda line: print(line, file=sys.stderr))
        counted = {outcome: number - before[outcome] for outcome, number in outcomes(metrics).items()}
        cpu_s = {arm.name: arm.cpu_s for arm in arms}
        figures += _figures(latency_ms, counted, runs, cpu_s, schedule)
        for figure in figures[-len(AGAINST) * len(schedule.concurrency) :]:
            _print(figure)
    await engine.client.close()
    return figures


def _figures(
    latency_ms: float,
    counted: dict[str, int],
    runs: Sequence[Run],
    cpu_s: Mapping[str, Mapping[str, float]],
    schedule: Schedule,
) -> Iterator[Figure]:
    found = {(run.contender, run.concurrency, run.repeat): run for run in runs}
    for concurrency in schedule.concurrency:
        for name, against in AGAINST.items():
            rates: list[float] = []
            ratios: list[float] = []
            cpu_ratios: list[float] = []
            num_different = 0
            for repeat in range(schedule.repeats):
                arm, base, plain = (found[each, concurrency, repeat] for each in (name, against, PLAIN))
                of_round = f"r{repeat}-c{concurrency}"
                rates.append(arm.num_tokens / arm.wall_s)
                ratios.append(rates[-1] * base.wall_s / base.num_tokens)
                tokens = arm.num_tokens / base.num_tokens
                cpu_ratios.append(tokens * cpu_s[against][of_round] / cpu_s[name][of_round])
                pairs = zip(arm.outcomes, plain.outcomes, strict=True)
                num_different += sum(one.token_ids != other.token_ids for one, other in pairs)
            figures = (rates, ratios, cpu_ratios, num_different)
            yield Figure(latency_ms, concurrency, name, against, *figures, counted)


def _print(figure: Figure) -> None:
    ratios, cpu, rate = sorted(figure.ratios), sorted(figure.cpu_ratios), median(figure.rates)
    print(
        f"{figure.latency_ms:5.1f} ms, {figure.concurrency:2} at once: {figure.arm:11} {rate:6.1f} tokens/s,"
        f" {median(ratios):.3f}x {figure.against} ({ratios[0]:.3f}-{ratios[-1]:.3f}),"
        f" a processor second {median(cpu):.3f}x ({cpu[0]:.3f}-{cpu[-1]:.3f}),"
        f" {figure.num_different} outputs differ, drafts {figure.outcomes}",
        flush=True,
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--latency-ms", default="5,50", help="added to a round trip")
    parser.add_argument("--concurrency", default="1,4")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--number", type=int, help="of prompts; default: all")
    parser.add_argument("--prompts", type=Path)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--threads", type=int, help="of the engine; default: all cores")
    parser.add_argument("--wait-ms", type=float, default=0.0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--proxy", type=int, help=argparse.SUPPRESS)
    parser.add_argument("options", nargs="*")
    given = parser.parse_args()
    if given.proxy is not None:
        asyncio.run(Proxy(given.proxy).serve())
        return
    configure_logs("error")
    with tempfile.TemporaryDirectory() as folder:
        key = Path(folder) / "key"
        key.write_text(secrets.token_hex(32))
        with propose_server(key, given.options) as (port, server), proxy(port) as between:
            figures = asyncio.run(run(given, key, between, server))
    if given.json:
        report = {"provenance": provenance({"by prompt": 0}, {}), "figures": [asdict(figure) for figure in figures]}
        given.json.write_text(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
