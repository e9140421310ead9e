"""Servers of a fake engine in processes of their own, forked from one that has imported what they need."""

import multiprocessing
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from prolepsis.core.config import EngineConfig, ServerConfig
from prolepsis.core.engine_client import EngineClient
from prolepsis.core.errors import EngineDead
from prolepsis.core.telemetry.logs import configure_logs
from prolepsis.core.telemetry.metrics import Metrics
from prolepsis.server.run import StartedEngine, serve
from tests.commands import free_port, wait_until_ready
from tests.fake_client import FakeEngineClient
from tests.server.fakes import ByteTokenizer, FakeEngine

FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload([__name__])
"""A process that imports the server itself takes seconds to start."""


class ServerProcess:
    """A process that runs `serve_it`; what it writes goes to a file, if one is named, and else are errors only."""

    def __init__(self, serve_it: Callable[..., None], *arguments: object, output: Path | None = None) -> None:
        self._process = FORKED.Process(target=_run, args=(serve_it, arguments, dict(os.environ), output))
        self._process.start()

    def send_signal(self, number: int) -> None:
        assert self._process.pid is not None, "it was started"
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        self._process.kill()

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Return the status with which it ended, None if it goes on."""
        self._process.join(timeout_s)
        return self._process.exitcode


def _run(
    serve_it: Callable[..., None], arguments: tuple[object, ...], environment: dict[str, str], output: Path | None
) -> None:
    os.environ.clear()
    os.environ.update(environment)
    if output is None:
        configure_logs("error")
    else:
        with output.open("ab") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
    serve_it(*arguments)


def serve_fake(config: ServerConfig, hold_after: int | None = None, delay_s: float = 0.0) -> None:
    engine = FakeEngine(hold_after=hold_after, delay_s=delay_s)
    serve(EngineConfig(), config, lambda _, __: StartedEngine(engine, ByteTokenizer()))
    assert engine.closed
    print("ended")


def serve_model(config: ServerConfig, engine: EngineConfig) -> None:
    from prolepsis.engine.start import start_engine  # torch: only these servers wait for it

    def start(engine: EngineConfig, metrics: Metrics) -> StartedEngine:
        made = start_engine(engine, metrics)
        return StartedEngine(made.client, made.tokenizer)

    serve(engine, config, start)


def serve_ending(config: ServerConfig) -> None:
    """The first engine ends with the first request; the next one answers."""

    async def again() -> EngineClient:
        return FakeEngine()

    ending = FakeEngineClient(lambda _: [EngineDead("gone")])
    serve(EngineConfig(), config, lambda _, __: StartedEngine(ending, ByteTokenizer(), restart=again))


@contextmanager
def started(
    serve_it: Callable[..., None],
    config: ServerConfig,
    *arguments: object,
    output: Path | None = None,
    certificate: Path | None = None,
) -> Iterator[tuple[ServerProcess, str]]:
    """Give a live server and its URL; it is killed in the end."""
    own = config.model_copy(update={"port": free_port()})
    running = ServerProcess(serve_it, own, *arguments, output=output)
    url = f"{'https' if certificate else 'http'}://127.0.0.1:{own.port}"
    try:
        wait_until_ready(f"{url}/", certificate=certificate)  # the application is there, and needs no key for it
        yield running, url
    finally:
        running.kill()
        running.wait()
