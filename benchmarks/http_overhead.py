"""What does HTTP cost? Milliseconds a request and a streamed chunk over asking the engine in process.

Usage: python -m benchmarks.http_overhead [--requests 400] [--streams 40] [--chunks 256] [--rates 20,50,100]
       [--json OUT]

The engine says scripted tokens without delay, one a step, so that all time is the server's. The server is uvicorn in a
process of its own, asked over one kept connection on loopback by a client that does next to nothing. Rounds alternate
between asking over HTTP and asking in process.

- request: one answer of one token, minus the same request consumed in process.
- among: the request in its whole time over HTTP, where requests come at random times, so many a second, over several
  connections. One after another they keep the server busy, which then reads new requests only in slices of time.
- chunk: (stream of --chunks chunks - stream of one chunk) / (--chunks - 1), minus the same of the engine in process.
"""

import argparse
import asyncio
import json
import multiprocessing
import random
import socket
import statistics
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import uvicorn

from benchmarks.script import keep, options
from prolepsis.control.store.store import unrecorded
from prolepsis.control.web.context import Context
from prolepsis.core.audit_event import discard
from prolepsis.core.config import ServerConfig
from prolepsis.core.engine_client import EngineClient
from prolepsis.core.events import Event, Finished, Tokens
from prolepsis.core.requests import GenerateRequest, SamplingParams
from prolepsis.core.stats import RequestStats
from prolepsis.core.telemetry.logs import configure_logs
from prolepsis.core.telemetry.metrics import Metrics
from prolepsis.server.app import build
from prolepsis.server.front.keys import Keys
from prolepsis.server.front.protocol import gateway_protocol
from prolepsis.server.run import bind
from prolepsis.server.sources import Sources
from tests.fake_client import INFO, FakeEngineClient
from tests.server.fakes import ByteTokenizer

PROMPT = "What is a prolepsis? " * 10
LETTER = ord("a")
CONNECTIONS = 16
Ask = Callable[[], Awaitable[None]]


def script(request: GenerateRequest) -> Iterable[Event]:
    """One token a step until `max_tokens`."""
    last = request.params.max_tokens - 1
    for i in range(last + 1):
        yield Tokens(request.request_id, 0, (LETTER,), finish_reason="length" if i == last else None, position=i)
    yield Finished(request.request_id, RequestStats(num_prompt_tokens=9, num_output_tokens=last + 1))


def engine() -> FakeEngineClient:
    return FakeEngineClient(script, replace(INFO, max_model_len=8192))


def serve(listener: socket.socket, client: Callable[[Metrics], EngineClient] = lambda _: engine()) -> None:
    """Run a server of any engine client until it is ended; log lines go nowhere, but are made."""
    with Path("/dev/null").open("w") as nowhere:
        configure_logs("info", stream=nowhere)
        config, metrics = ServerConfig(), Metrics()
        context = Context(config=config, client=client(metrics), metrics=metrics, store=unrecorded(), emit=discard)
        app = build(context, ByteTokenizer(chat_template=None), Sources(keys=Keys(None)))
        settings = uvicorn.Config(
            app, log_config=None, access_log=False, http=gateway_protocol(config, app.state.admission.metrics)
        )
        asyncio.run(uvicorn.Server(settings).serve([listener]))


@dataclass(frozen=True, slots=True)
class Running:
    """A server in a process of its own."""

    port: int
    process: int


@contextmanager
def running(serve: Callable[..., None], *arguments: object) -> Iterator[Running]:
    """Run `serve`, which takes a listener and `arguments`, in a process of its own."""
    listener = bind(ServerConfig(port=0))
    process = multiprocessing.get_context("fork").Process(target=serve, args=(listener, *arguments), daemon=True)
    process.start()
    assert process.pid is not None
    try:
        yield Running(listener.getsockname()[1], process.pid)
    finally:
        process.terminate()
        process.join()


class Connection:
    """One kept HTTP/1.1 connection that reads as little of the answers as it can."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def post(self, body: bytes) -> None:
        headers = f"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        self._writer.write(f"POST /v1/chat/completions HTTP/1.1\r\n{headers}".encode() + body)
        reply = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        if not reply.startswith(b"http/1.1 200"):
            raise RuntimeError(reply.decode())
        if b"transfer-encoding: chunked" in reply:
            await self._reader.readuntil(b"0\r\n\r\n")
        else:
            length = reply.split(b"content-length: ")[1].split(b"\r\n")[0]
            await self._reader.readexactly(int(length))


def body(max_tokens: int, *, stream: bool) -> bytes:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": PROMPT}]
    asked = {"model": INFO.model, "messages": messages, "temperature": 0.7, "max_tokens": max_tokens, "stream": stream}
    return json.dumps(asked).encode()


def in_process(client: FakeEngineClient, max_tokens: int) -> Ask:
    request = GenerateRequest("r", tuple(PROMPT.encode()), SamplingParams(max_tokens=max_tokens))

    async def ask() -> None:
        async for _ in client.generate(request):
            pass

    return ask


async def alternate(asks: Mapping[str, Ask], rounds: int) -> dict[str, list[float]]:
    """Return the milliseconds of each way of asking, round by round; the first tenth warms up."""
    times: dict[str, list[float]] = {name: [] for name in asks}
    warm = max(1, rounds // 10)
    for number in range(warm + rounds):
        for name, ask in asks.items():
            started = time.perf_counter()
            await ask()
            if number >= warm:
                times[name].append(1000 * (time.perf_counter() - started))
    return times


async def at_random(port: int, body: bytes, rate: float, number: int) -> list[float]:
    """Return the milliseconds of requests that come at random times (a Poisson process), `rate` a second."""
    free = deque([await connect(port) for _ in range(CONNECTIONS)])
    times: list[float] = []

    async def ask() -> None:
        connection = free.popleft()  # that rests for longest: the server closes those that rest for too long
        started = time.perf_counter()
        await connection.post(body)
        times.append(1000 * (time.perf_counter() - started))
        free.append(connection)

    chance = random.Random(0)
    async with asyncio.TaskGroup() as asking:
        for _ in range(number):
            await asyncio.sleep(chance.expovariate(rate))
            asking.create_task(ask())
    return times


async def connect(port: int, wait_s: float = 10.0) -> Connection:
    """Return a connection once the server listens."""
    end = time.monotonic() + wait_s
    while time.monotonic() < end:
        try:
            return Connection(*await asyncio.open_connection("127.0.0.1", port, limit=2**24))
        except ConnectionRefusedError:
            await asyncio.sleep(0.05)
    raise RuntimeError(f"the server did not start within {wait_s:g} s")


async def measure(port: int, args: argparse.Namespace) -> dict[str, dict[str, float]]:
    connection = await connect(port)
    client = engine()
    one, short, long = body(1, stream=False), body(1, stream=True), body(args.chunks, stream=True)
    ways: dict[str, Ask] = {"http": lambda: connection.post(one), "engine": in_process(client, 1)}
    single = await alternate(ways, args.requests)
    asks: dict[str, Ask] = {
        "short": lambda: connection.post(short),
        "long": lambda: connection.post(long),
        "engine short": in_process(client, 1),
        "engine long": in_process(client, args.chunks),
    }
    streams = await alternate(asks, args.streams)
    gaps = args.chunks - 1
    chunk = [(a - b) / gaps for a, b in zip(streams["long"], streams["short"], strict=True)]
    step = [(a - b) / gaps for a, b in zip(streams["engine long"], streams["engine short"], strict=True)]
    among = {rate: await at_random(port, one, float(rate), args.requests) for rate in args.rates.split(",")}
    return {
        "request over HTTP": summary(single["http"]),
        "request in process": summary(single["engine"]),
        "overhead of a request": summary([a - b for a, b in zip(single["http"], single["engine"], strict=True)]),
        **{f"request among {rate} a second": summary(took) for rate, took in among.items()},
        "overhead of a chunk": summary([a - b for a, b in zip(chunk, step, strict=True)]),
    }


def summary(values: list[float]) -> dict[str, float]:
    """Median, 99th percentile and extremes in milliseconds."""
    p99 = statistics.quantiles(values, n=100)[98]
    figures = {"p50": statistics.median(values), "p99": p99, "min": min(values), "max": max(values)}
    return {name: round(value, 4) for name, value in figures.items()}


def main() -> None:
    args = options(__doc__, requests=400, streams=40, chunks=256, rates="20,50,100")
    with running(serve) as server:
        figures = asyncio.run(measure(server.port, args))
    for name, values in figures.items():
        print(f"{name}: " + ", ".join(f"{figure} {value} ms" for figure, value in values.items()))
    keep(args, figures_ms=figures)


if __name__ == "__main__":
    main()
