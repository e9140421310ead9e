"""What would 1 to 64 replicas do? Simulated: our routers, pages and a real trace, on times that are measured here.

Usage: python -m benchmarks.replica_scaling TRACE [--replicas 1,4,16,64] [--rate 1.0] [--pages 2048] [--front-ends 1]
       [--request-ms 0] [--chunk-ms 0] [--curve FILE] [--calls N] [--json OUT]

TRACE is the Mooncake conversation trace; its lengths are divided by 16, so that a block of 512 tokens is a page, and
its clock runs so fast that each replica gets --rate requests a second. Passes take what they take on one thread of this
machine with the default model (--curve keeps them for other runs). --request-ms and --chunk-ms are what a front end
takes of one core, as `benchmarks.router_overhead` finds.

Told are, by number of replicas and router: output tokens a second, time to the first token, prompt tokens from the
cache, the busiest replica over the mean, and how much of the front end's time is taken, of which a replica's reports
take what is measured first.

Left out: the network, failures, drafts, answers in the prefix cache, and users who wait for an answer before they go
on.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.script import keep, options
from prolepsis.core.config import EngineConfig
from prolepsis.core.engine_client import EngineHealth
from prolepsis.core.figures import Figure, RequestDone, StepDone
from prolepsis.core.telemetry.metrics import Metrics
from prolepsis.engine.drafting.cost import CostCurve
from prolepsis.engine.models.load import load_model
from prolepsis.engine.profile import measure
from prolepsis.engine.timings import PHASES
from prolepsis.remote.channel import TO_FRONT_END
from prolepsis.remote.host import STATUS_S
from prolepsis.remote.messages import Status
from prolepsis.remote.prefixes import PrefixRouter, ReplicaRouter
from tests.control.store.fakes import STATS
from tests.fake_client import INFO
from tests.simulation.replicas import Door, Machine, Outcome, RoundRobin, simulate
from tests.simulation.shared_prefixes import mooncake

ROUTERS: dict[str, Callable[[], ReplicaRouter]] = {"round robin": RoundRobin, "prefix": PrefixRouter}
PASS_TOKENS = (1, 2, 4, 8, 16, 32, 64, 256)
TRACE_RATE = 3.4
"""Requests a second of the trace as it was recorded."""
STEPS_PER_S = 100
"""Of a busy replica; each is counted at the front end."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; times in milliseconds."""

    num_replicas: int
    router: str
    requests_per_s: float
    tokens_per_s: float
    first_token_p50: float
    first_token_p99: float
    hit_rate: float
    imbalance: float
    door_busy: float


def report_ms() -> float:
    """Return what one replica's status and figures take at the front end."""
    health = EngineHealth(alive=True, ready=True, detail="", num_running=4, num_waiting=0, kv_usage=0.5)
    step = StepDone(dict.fromkeys(PHASES, 0.001), 8)
    messages: list[Status | Figure] = [
        Status(health, INFO, (), ()),
        *[step] * int(STEPS_PER_S * STATUS_S),
        RequestDone(STATS),
    ]
    frames = [TO_FRONT_END.encode_body(message) for message in messages]
    metrics, times = Metrics(), []
    for _ in range(200):
        began = time.process_time()
        for body in frames:
            message = TO_FRONT_END.decode(body)
            if isinstance(message, Figure):
                metrics.observe(message)
        times.append(1000 * (time.process_time() - began))
    return statistics.median(times)


def curve_of(file: Path | None) -> CostCurve:
    """Return the curve that `file` keeps, else measure the default model on one thread."""
    if file is not None and file.exists():
        return CostCurve.from_json(file.read_text())
    curve = measure(load_model(EngineConfig(threads=1)).model, counts=PASS_TOKENS)
    if file is not None:
        file.write_text(curve.to_json())
    return curve


def row(num_replicas: int, router: str, outcome: Outcome) -> Row:
    times = outcome.ttft_s
    return Row(
        num_replicas,
        router,
        requests_per_s=round(len(outcome.jobs) / outcome.seconds, 1),
        tokens_per_s=round(outcome.tokens_per_s, 1),
        first_token_p50=round(1000 * times[len(times) // 2], 1),
        first_token_p99=round(1000 * times[int(0.99 * len(times))], 1),
        hit_rate=round(outcome.hit_rate, 3),
        imbalance=round(outcome.imbalance, 2),
        door_busy=round(outcome.door_busy, 3),
    )


def simulated(arguments: argparse.Namespace, machine: Machine, times: Door) -> list[Row]:
    rows = []
    for num_replicas in map(int, arguments.replicas.split(",")):
        speed = arguments.rate * num_replicas / TRACE_RATE
        calls = list(mooncake(Path(arguments.trace), speed, arguments.calls))
        for name, make in ROUTERS.items():
            routers = [make() for _ in range(arguments.front_ends)]
            rows.append(row(num_replicas, name, simulate(calls, machine, num_replicas, routers, times)))
            print(json.dumps(asdict(rows[-1])), file=sys.stderr)
    return rows


def main() -> None:
    """Measure, simulate and print."""
    arguments = options(
        __doc__,
        "trace",
        replicas="1,4,16,64",
        rate=1.0,
        pages=2048,
        outside_ms=0.6,
        front_ends=1,
        request_ms=0.0,
        chunk_ms=0.0,
        curve=Path,
        calls=int,
    )
    machine = Machine(curve_of(arguments.curve), arguments.pages, arguments.outside_ms)
    print(f"report_ms {(report := report_ms()):.3g}")
    times = Door(arguments.request_ms, arguments.chunk_ms, report, 1 / STATUS_S)
    rows = simulated(arguments, machine, times)
    print("| " + " | ".join(asdict(rows[0])) + " |")
    for one in rows:
        print("| " + " | ".join(str(value) for value in asdict(one).values()) + " |")
    keep(arguments, report_ms=report, curve=machine.curve.to_json(), rows=[asdict(one) for one in rows])


if __name__ == "__main__":
    main()
