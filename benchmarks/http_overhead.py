"""What does HTTP cost? Milliseconds a request and a streamed chunk over asking the engine in process.

Usage: python -m benchmarks.http_overhead [--requests 400] [--streams 40] [--chunks 256] [--rates 20,50,100] [--keys]
[--json OUT]

The engine says scripted tokens without delay, one a step, so that all time is the server's. The server is uvicorn in a
process of its own, asked over one kept connection on loopback by a client that does next to nothing. Rounds alternate
between asking over HTTP and asking in process. With --keys, requests also go to a second server that knows API keys and
limits of rate, with a valid key.

- request: one answer of one token, minus the same request consumed in process.
- key: that request with a key, minus the one without.
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
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

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
from prolepsis.server.front.key_file import KeyFile, new_key
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


def serve(listener: socket.socket, keys_file: Path | None) -> None:
    """Run a server of the scripted engine in this process until it is ended."""
    config, keys = ServerConfig(), Keys(None)
    if keys_file is not None:
        config = ServerConfig(requests_per_minute={"key": 10**6}, tokens_per_minute={"key": 10**9})
        keys = Keys(KeyFile(keys_file))
    serve_client(listener, lambda _: engine(), config, keys)


def serve_client(
    listener: socket.socket, client: Callable[[Metrics], EngineClient], config: ServerConfig, keys: Keys
) -> None:
    """Run a server of any engine client until it is ended; log lines go nowhere, but are made."""
    with Path("/dev/null").open("w") as nowhere:
        configure_logs("info", stream=nowhere)
        metrics = Metrics()
        context = Context(config=config, client=client(metrics), metrics=metrics, store=unrecorded(), emit=discard)
        app = build(context, ByteTokenizer(chat_template=None), Sources(keys=keys))
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

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: str | None) -> None:
        self._reader = reader
        self._writer = writer
        self._headers = "Host: localhost\r\nContent-Type: application/json"
        if key is not None:
            self._headers += f"\r\nAuthorization: Bearer {key}"

    async def post(self, body: bytes) -> None:
        head = f"POST /v1/chat/completions HTTP/1.1\r\n{self._headers}\r\nContent-Length: {len(body)}\r\n\r\n"
        self._writer.write(head.encode() + body)
        headers = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        if not headers.startswith(b"http/1.1 200"):
            raise RuntimeError(headers.decode())
        if b"transfer-encoding: chunked" in headers:
            await self._reader.readuntil(b"0\r\n\r\n")
        else:
            length = headers.split(b"content-length: ")[1].split(b"\r\n")[0]
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


async def connect(port: int, key: str | None = None, wait_s: float = 10.0) -> Connection:
    """Return a connection once the server listens."""
    end = time.monotonic() + wait_s
    while time.monotonic() < end:
        try:
            return Connection(*await asyncio.open_connection("127.0.0.1", port, limit=2**24), key)
        except ConnectionRefusedError:
            await asyncio.sleep(0.05)
    raise RuntimeError(f"the server did not start within {wait_s:g} s")


async def measure(ports: Sequence[int], key: str, args: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Ask the first port without a key; the second, where there is one, with it."""
    connection = await connect(ports[0])
    client = engine()
    one, short, long = body(1, stream=False), body(1, stream=True), body(args.chunks, stream=True)
    ways: dict[str, Ask] = {"http": lambda: connection.post(one), "engine": in_process(client, 1)}
    if len(ports) > 1:
        known = await connect(ports[1], key)
        ways["key"] = lambda: known.post(one)
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
    among = {rate: await at_random(ports[0], one, float(rate), args.requests) for rate in args.rates.split(",")}
    with_key = {}
    if "key" in single:
        added = [a - b for a, b in zip(single["key"], single["http"], strict=True)]
        with_key = {"request over HTTP with a key": summary(single["key"]), "overhead of the key": summary(added)}
    return {
        "request over HTTP": summary(single["http"]),
        "request in process": summary(single["engine"]),
        "overhead of a request": summary([a - b for a, b in zip(single["http"], single["engine"], strict=True)]),
        **with_key,
        **{f"request among {rate} a second": summary(took) for rate, took in among.items()},
        "overhead of a chunk": summary([a - b for a, b in zip(chunk, step, strict=True)]),
    }


def summary(values: list[float]) -> dict[str, float]:
    """Median, 99th percentile and extremes in milliseconds."""
    p99 = statistics.quantiles(values, n=100)[98]
    figures = {"p50": statistics.median(values), "p99": p99, "min": min(values), "max": max(values)}
    return {name: round(value, 4) for name, value in figures.items()}


def main() -> None:
    args = options(__doc__, requests=400, streams=40, chunks=256, rates="20,50,100", keys=False)
    with TemporaryDirectory() as folder:
        record, key = new_key("bench")
        KeyFile(Path(folder) / "keys.json").add(record)
        files = [None, Path(folder) / "keys.json"] if args.keys else [None]
        with ExitStack() as servers:
            ports = [servers.enter_context(running(serve, keys_file)).port for keys_file in files]
            figures = asyncio.run(measure(ports, key, args))
    for name, values in figures.items():
        print(f"{name}: " + ", ".join(f"{figure} {value} ms" for figure, value in values.items()))
    keep(args, figures_ms=figures)


if __name__ == "__main__":
    main()
