"""What does recording a request cost? Processor microseconds of each part, for requests that end one after another.

Usage: python -m benchmarks.recording_cost [--requests 5000] [--repeats 3]

No engine runs: requests of 16 tenants, 4 routes and 24 traffic classes, with two proposers, are handed to what counts
and keeps them. `store` is the writer's thread with SQLite on a disk; all else is the event loop's.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from prometheus_client import CollectorRegistry

from prolepsis.control.cost.runtime import CostFeature
from prolepsis.control.store.store import open_store
from prolepsis.control.traffic.feature import TrafficFeature
from prolepsis.control.traffic.recent import RecentFeature
from prolepsis.core.ended import Assignment, RequestEnded
from prolepsis.core.engine_client import EngineHealth
from prolepsis.core.figures import RequestDone
from prolepsis.core.stats import DeviceSeconds, ProposerCounts
from prolepsis.core.telemetry.metrics import Metrics
from prolepsis.server.status.recorder import Recorder
from tests.ops.tracing.ended import prompt_ended, request_ended

ROUTES = ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/api/chat")


def ended(number: int) -> RequestEnded:
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


def measure(num_requests: int) -> dict[str, float]:
    """Return the microseconds a request of each part."""
    requests = [ended(number) for number in range(num_requests)]
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
        spent["record"] = _microseconds(Recorder(store, 1.0, lambda: None).on_request_end, requests)
        store.close()
        return {**spent, "store": 1e6 * (time.process_time() - began) / num_requests - spent["record"]}


def _microseconds(part: Callable[[RequestEnded], object], requests: list[RequestEnded]) -> float:
    began = time.thread_time()
    for each in requests:
        part(each)
    return 1e6 * (time.thread_time() - began) / len(requests)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=5000)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    runs = [measure(given.requests) for _ in range(given.repeats)]
    print(json.dumps({name: round(statistics.median(run[name] for run in runs), 1) for name in runs[0]}, indent=2))
