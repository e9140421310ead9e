"""What do clients notice while the database of two servers is gone? Requests that failed, latencies, and what was lost.

Usage: python -m benchmarks.database_loss [--front-ends 2] [--seconds 60] [--how cut|hang] [--clients 8] [--json OUT]

Two servers of the default model share a database of the PostgreSQL server that tests use, behind a proxy; with
--front-ends, so many front ends on Ray Serve do, before two replicas. Clients ask all in turn, for greedy and sampled
answers with fixed seeds. After 10 s the proxy is cut (connections break, new ones are refused) or hangs (nothing comes
any more, as in a partition) for --seconds; then it carries again. Told are failed requests, outputs that differ from
the first answer to the same request, refusals by the rate limit, latencies before, during and after, whether controls
held, how long after the mend all records and a stop that was set meanwhile were there, and how many answers that stop
reached before: those of one of two servers, but of all front ends, as it holds in their replicas.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
from sqlalchemy import func, select

from prolepsis.control.store.migrate import upgrade
from prolepsis.control.store.tables import request_records
from prolepsis.core.kill_scope import EVERYTHING
from prolepsis.lab.measure.provenance import provenance
from tests.commands import free_port, prolepsis, serving
from tests.control.store.databases import opened, postgresql_setting
from tests.control.store.proxy import Proxy, proxied

SETTINGS = ["--replay-sample", "0", "--log-level", "error", "--requests-per-minute", "tenant=60000"]
MODEL = "smollm2-135m-instruct"
AROUND_S = 10.0
STOP_S = 2.0
"""After so long, requests that begin are counted as those that a stop reaches, or not."""
NUM_LOOKS = 20
"""Ray's proxy chooses a door for each request: so many see all of them."""
WAIT_S = 180.0
PHASES = ("before", "without", "after")


@dataclass
class Load:
    """What clients saw."""

    phase: str = PHASES[0]
    is_over: bool = False
    latencies: dict[str, list[float]] = field(default_factory=lambda: {phase: [] for phase in PHASES})
    failures: list[str] = field(default_factory=list)
    first: dict[int, str] = field(default_factory=dict)
    """The first answer to each request."""
    num_different: int = 0
    stopped_at: float = float("inf")
    kept_plain: list[bool] = field(default_factory=list)
    """Of answers without the database, after the stop: whether the kill switch had them decoded plainly."""

    @property
    def num_answered(self) -> int:
        return sum(map(len, self.latencies.values()))

    async def ask(self, clients: Sequence[httpx.AsyncClient], client: int) -> None:
        """Ask both servers in turn until the load is over."""
        number = client
        while not self.is_over:
            seed = number % 16
            body = {"model": MODEL, "prompt": f"Number {seed} is", "max_tokens": 24, "seed": seed}
            body["temperature"] = 0.8 * (seed % 2)
            began, phase = time.monotonic(), self.phase
            try:
                reply = await clients[number % 2].post("/v1/completions", json=body)
                reply.raise_for_status()
            except httpx.HTTPError as error:
                self.failures.append(f"{phase}: {error!r}")
            else:
                self.latencies[phase].append(time.monotonic() - began)
                text = reply.json()["choices"][0]["text"]
                self.num_different += self.first.setdefault(seed, text) != text
                if began > self.stopped_at + STOP_S and self.phase == PHASES[1]:
                    self.kept_plain.append("reason=killed" in reply.headers["x-spec-effective"])
            number += 1


@contextmanager
def server(setting: str, folder: Path) -> Iterator[str]:
    """Run a server with files of its own; yield its URL once it is ready."""
    port = free_port()
    environment = {**os.environ, "PROLEPSIS_DATA": str(folder)}
    command = prolepsis("serve", *SETTINGS, "--store", setting, "--port", str(port), "--threads", "1")
    url = f"http://127.0.0.1:{port}"
    with serving(command, f"{url}/health/ready", environment=environment, wait_s=WAIT_S):
        yield url


@contextmanager
def front_ends(setting: str, folder: Path, number: int) -> Iterator[str]:
    """Run front ends before two replicas; yield their URL once they are ready."""
    port, file = free_port(), folder / "serve.json"
    limits = {"requests_per_minute": {"tenant": 60000}, "replay_sample": 0}
    arguments = {
        "front_ends": number,
        "engine": {"model": MODEL, "threads": 1},
        "server": {"replicas": 2, "store": setting, **limits},
    }
    application = {
        "name": "prolepsis",
        "import_path": "prolepsis.adapters.ray:app",
        "route_prefix": "/",
        "args": arguments,
    }
    http = {"host": "127.0.0.1", "port": port}
    file.write_text(json.dumps({"http_options": http, "applications": [application]}))
    command = [sys.executable, "-c", "from ray.serve.scripts import cli; cli()", "run", str(file)]
    url, environment = f"http://127.0.0.1:{port}", {**os.environ, "PROLEPSIS_DATA": str(folder)}
    with serving(command, f"{url}/health/ready", folder / "log", environment, WAIT_S):
        wait_for(lambda: num_ready(url) == number)
        yield url


def num_ready(url: str) -> int:
    servers = httpx.get(f"{url}/admin/replicas").raise_for_status().json()["replicas"]
    return sum(one["state"] == "ready" for one in servers)


def wait_for(condition: Callable[[], bool]) -> float:
    """Wait until a condition holds; return the seconds that took."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > WAIT_S:
            raise SystemExit(f"not within {WAIT_S:g} s")
        time.sleep(0.05)
    return time.monotonic() - began


def stopped(url: str) -> set[str]:
    """Return what is stopped at every server behind a URL."""
    with httpx.Client(base_url=url) as client:
        looks = [client.get("/admin/kill").raise_for_status().json()["shared"] for _ in range(NUM_LOOKS)]
    return set.intersection(*({one["scope"] for one in look} for look in looks))


def stop(url: str, scope: str) -> None:
    httpx.put(f"{url}/admin/kill", json={"on": True, "scope": scope, "reason": "drill"}).raise_for_status()


async def run(urls: Sequence[str], proxy: Proxy, arguments: argparse.Namespace, load: Load) -> dict[str, object]:
    """Ask while the database goes and comes back; return what of the controls held without it."""
    stop(urls[0], "tenant:bank")
    await asyncio.to_thread(wait_for, lambda: "tenant:bank" in stopped(urls[1]))
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=60.0)) for url in urls]
        asking = [asyncio.create_task(load.ask(clients, number)) for number in range(arguments.clients)]
        await asyncio.sleep(AROUND_S)
        (proxy.cut if arguments.how == "cut" else proxy.hang)()
        load.phase = PHASES[1]
        await asyncio.sleep(arguments.seconds / 2)
        began = time.monotonic()
        await asyncio.to_thread(stop, urls[0], EVERYTHING)
        load.stopped_at = time.monotonic()
        metrics_s = await asyncio.to_thread(_metrics_s, urls[0])
        held = {
            "stop_s": time.monotonic() - began,
            "metrics_s": metrics_s,
            "kept": [sorted(await asyncio.to_thread(stopped, url)) for url in urls],
        }
        await asyncio.sleep(arguments.seconds / 2)
        proxy.mend()
        load.phase = PHASES[2]
        held["reaches_the_other_s"] = await asyncio.to_thread(wait_for, lambda: EVERYTHING in stopped(urls[1]))
        await asyncio.sleep(AROUND_S)
        load.is_over = True
        await asyncio.gather(*asking)
    return held


def _metrics_s(url: str) -> float:
    began = time.monotonic()
    httpx.get(f"{url}/metrics", timeout=60.0).raise_for_status()
    return time.monotonic() - began


def num_records(setting: str) -> int:
    with closing(opened(setting)) as database, database.read() as connection:
        return connection.execute(select(func.count()).select_from(request_records)).scalar_one()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--front-ends", type=int, help="front ends on Ray Serve in place of servers")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--how", choices=("cut", "hang"), default="cut")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    load = Load()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        direct = stack.enter_context(postgresql_setting())
        with closing(opened(direct)) as database:
            upgrade(database)
        proxy, setting = stack.enter_context(proxied(direct))
        if arguments.front_ends:
            urls = [stack.enter_context(front_ends(setting, folder, arguments.front_ends))] * 2
        else:
            urls = [stack.enter_context(server(setting, folder / name)) for name in ("a", "b")]
        held = asyncio.run(run(urls, proxy, arguments, load))
        delivered_s = wait_for(lambda: num_records(direct) >= load.num_answered)
        num_delivered = num_records(direct)
    if not all(load.latencies.values()):
        raise SystemExit(f"a phase without an answer: {load.failures[:3]}")
    found = {
        "failed": len(load.failures),
        "different": load.num_different,
        "answered": {phase: len(one) for phase, one in load.latencies.items()},
        "p50_s": {phase: round(statistics.median(one), 3) for phase, one in load.latencies.items()},
        "longest_s": {phase: round(max(one), 3) for phase, one in load.latencies.items()},
        "stop_reached": f"{sum(load.kept_plain)} of {len(load.kept_plain)}",
        "records": num_delivered,
        "delivered_after_the_load_s": round(delivered_s, 2),
        **held,
    }
    for name, value in found.items():
        print(f"{name:<28} {value}")
    print(*load.failures[:10], sep="\n")
    if arguments.json:
        arguments.json.write_text(json.dumps({"provenance": provenance({}, {}), "figures": found}, indent=1))
    sys.exit(bool(load.failures or load.num_different))


if __name__ == "__main__":
    main()
