"""What does a hop to one of N replicas cost? Processor time of a request, beside asking one plain server.

Usage: python -m benchmarks.router_overhead [--replicas 2] [--at-once 16] [--rounds 5] [--smg PROGRAM] [--json OUT]

Engines say scripted tokens without delay, so that all time is the servers'. Plain servers are those of
`benchmarks.http_overhead`, each in a process of its own. In the same run they are asked directly, through HAProxy and,
with --smg, through the Shepherd Model Gateway (`smg launch`); and so is our front end, with as many engines in
replicas of Ray Serve behind it. All ways are asked in turn, 100 requests of one token over each connection.

- processor: time of all processes on the way, by request; unlike a wall clock it minds little what else runs.
- per second: requests, with --at-once connections.
"""

import argparse
import asyncio
import os
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import which

from benchmarks.http_overhead import Connection, body, connect, engine, running, serve
from benchmarks.script import keep, options
from prolepsis.adapters.ray.autoscaling import Scaling
from prolepsis.adapters.ray.hosts import RayHosts
from prolepsis.adapters.ray.replica import EngineReplica
from prolepsis.adapters.ray.start import engines_at
from prolepsis.core.engine_client import EngineClient
from prolepsis.core.extras import RAY
from prolepsis.core.telemetry.metrics import Metrics
from prolepsis.remote.host import KeptFigures
from tests import commands
from tests.adapters.ray.processes import replica_processes
from tests.commands import free_port

HAPROXY = """
global
    log /dev/null local0
defaults
    mode http
    timeout connect 5s
    timeout client 60s
    timeout server 60s
    http-reuse always
frontend door
    bind 127.0.0.1:{port}
    default_backend engines
backend engines
    balance leastconn
{servers}
"""
START_S = 120.0
TICKS_PER_MS = os.sysconf("SC_CLK_TCK") / 1000
Figures = dict[str, dict[str, float]]


@dataclass(frozen=True, slots=True)
class Way:
    """One way to an engine: where it is asked, and which processes do its work."""

    port: int
    processes: Callable[[], Sequence[int]]

    def processor_ms(self) -> float:
        """Return what its processes have taken so far, to ten milliseconds."""
        ticks = 0
        for process in self.processes():
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / TICKS_PER_MS


class ScriptedReplica(EngineReplica):
    """A replica whose engine says scripted tokens."""

    def __init__(self) -> None:
        super().__init__(engine(), KeptFigures())


def serve_replicas(listener: socket.socket, num_replicas: int) -> None:
    """Run our front end over so many scripted engines until it is ended."""

    from prolepsis.adapters.ray.cluster import Cluster, prepare

    prepare(cluster := Cluster())  # before Ray is imported
    from prolepsis.adapters.ray.serve import replicas_of, started, stop_on

    handle = started(replicas_of(ScriptedReplica, Scaling(least=num_replicas, most=num_replicas)).bind(), cluster)
    info = handle.handle.info.remote().result()

    def client(metrics: Metrics) -> EngineClient:
        return engines_at(RayHosts(handle, metrics), info, metrics)

    try:
        serve(listener, client)
    finally:
        stop_on(cluster)


@contextmanager
def haproxy(path: str, ports: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Run HAProxy before servers; yield its port and its process."""
    port = free_port()
    servers = "\n".join(f"    server engine{i} 127.0.0.1:{one}" for i, one in enumerate(ports))
    with tempfile.NamedTemporaryFile("w", suffix=".cfg") as settings:
        settings.write(HAPROXY.format(port=port, servers=servers))
        settings.flush()
        with commands.running([path, "-db", "-f", settings.name], Path(os.devnull)) as process:
            yield port, process.pid


@contextmanager
def smg(path: str, ports: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Run the Shepherd Model Gateway before servers; yield its port and its process."""
    port = free_port()
    urls = [f"http://127.0.0.1:{one}" for one in ports]
    options = ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(free_port())]
    command = [path, "launch", *options, "--policy", "cache_aware", "--worker-urls", *urls]
    with commands.running(command, Path(os.devnull)) as process:
        yield port, process.pid


@contextmanager
def ways(arguments: argparse.Namespace) -> Iterator[dict[str, Way]]:
    """Start all servers."""
    found: dict[str, Way] = {}
    with ExitStack() as open_:
        plain = [open_.enter_context(running(serve)) for _ in range(arguments.replicas)]
        ports, processes = [one.port for one in plain], [one.process for one in plain]
        found["direct"] = Way(ports[0], lambda: processes)
        if path := which("haproxy", path=f"{os.environ['PATH']}:/usr/sbin"):
            port, process = open_.enter_context(haproxy(path, ports))
            found["haproxy"] = Way(port, lambda: [*processes, process])
        if arguments.smg:
            gateway_port, gateway = open_.enter_context(smg(arguments.smg, ports))
            found["smg"] = Way(gateway_port, lambda: [*processes, gateway])
        if RAY.is_installed:
            door = open_.enter_context(running(serve_replicas, arguments.replicas))
            found["front end"] = Way(door.port, lambda: [door.process, *replica_processes()])
        yield found


async def answering(way: Way, asked: bytes) -> Connection:
    """Return a connection once requests are answered: a gateway may listen before it knows its servers."""
    end = time.monotonic() + START_S
    while True:
        connection = await connect(way.port, wait_s=START_S)
        try:
            await connection.post(asked)
        except (RuntimeError, OSError, asyncio.IncompleteReadError):
            if time.monotonic() > end:
                raise
            await asyncio.sleep(0.5)
        else:
            return connection


async def at_once(way: Way, number: int) -> dict[str, float]:
    """Ask over so many connections; return requests a second and processor time of a request."""
    asked, left = body(1, stream=False), list(range(100 * number))
    connections = [await answering(way, asked) for _ in range(number)]

    async def ask(connection: Connection) -> None:
        while left:
            left.pop()
            await connection.post(asked)

    total, began, before = len(left), time.perf_counter(), way.processor_ms()
    await asyncio.gather(*(ask(connection) for connection in connections))
    seconds = time.perf_counter() - began
    return {"per second": total / seconds, "processor ms": (way.processor_ms() - before) / total}


async def measure(found: Mapping[str, Way], arguments: argparse.Namespace) -> dict[str, Figures]:
    """Ask all ways in turn; return the figures of each, over rounds."""
    loads: dict[str, list[dict[str, float]]] = {name: [] for name in found}
    for _ in range(arguments.rounds):
        for name, way in found.items():
            loads[name].append(await at_once(way, arguments.at_once))
    return {
        name: {figure: _spread([one[figure] for one in rounds]) for figure in rounds[0]}
        for name, rounds in loads.items()
    }


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"p50": round(statistics.median(values), 3), "min": round(min(values), 3), "max": round(max(values), 3)}


def main() -> None:
    """Measure and print."""
    arguments = options(__doc__, replicas=2, at_once=16, rounds=5, smg=str)
    with ways(arguments) as found:
        figures = asyncio.run(measure(found, arguments))
    for name, parts in figures.items():
        for part, values in parts.items():
            print(f"{name}: {part}: " + ", ".join(f"{figure} {value:g}" for figure, value in values.items()))
    keep(arguments, figures=figures)


if __name__ == "__main__":
    main()
