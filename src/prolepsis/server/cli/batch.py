"""`prolepsis batch`: the requests of a file, run without a server."""

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer
from jiter import from_json

from prolepsis.control.store.batches import BatchLine, LineResult
from prolepsis.core.config import EngineConfig
from prolepsis.core.errors import ConfigError
from prolepsis.core.files import read_text
from prolepsis.core.terminal.config import Settings
from prolepsis.core.terminal.flags import configured
from prolepsis.core.terminal.output import BAD_INPUT, print_error, print_facts, stderr, warn

if TYPE_CHECKING:
    from prolepsis.engine.start import Running
    from prolepsis.server.services import Services

_BEGINNING = b'{"id":"batch_req_'
"""Of each result."""


@configured(EngineConfig)
def batch(
    settings: Settings,
    *,
    file: Annotated[Path, typer.Argument(help="requests, a JSON object a line")],
    output: Annotated[Path, typer.Option("--output", "-o", help="file of the results; an interrupted one is resumed")],
) -> None:
    """Run a file of requests, as /v1/batches takes it, without a server. Each result is on disk before it counts."""
    requests = BatchFile.read(file)
    with results_of(output) as (out, done):
        left = [line for line in requests.lines if line.custom_id not in done]
        unknown = done - {line.custom_id for line in requests.lines}
        if unknown:
            message = (
                f"output {output} has a result of {min(unknown)!r}, which {file} lacks; allowed: a file of its own"
            )
            raise ConfigError(message, param="output")
        failed = asyncio.run(_run(settings, requests, left, out)) if left else 0
    print_facts([("lines", len(requests.lines)), ("had results", len(done)), ("ran", len(left)), ("failed", failed)])
    if failed:
        warn(f"{failed} lines failed; {output} says why")


@dataclass(frozen=True, slots=True)
class BatchFile:
    """A file whose lines may run."""

    content: bytes
    lines: Sequence[BatchLine]  # in the order in which they run

    @classmethod
    def read(cls, file: Path) -> "BatchFile":
        """Read a file; prints the faults of its lines and exits where it has any. An empty one has no lines."""
        from prolepsis.server.batches.lines import MOST_BYTES, LineReader
        from prolepsis.server.known import GENERATION_ROUTES

        content = read_text(file, "file", most_bytes=MOST_BYTES).encode()
        reader = LineReader("", GENERATION_ROUTES)  # the model, which bounds bodies, comes later
        lines = reader.take(content) + reader.take(b"")
        faults = reader.faults if reader.num_lines else ()
        for fault in faults:
            print_error(f"{file}, line {fault.line}: {fault.message}")
        if faults:
            raise typer.Exit(BAD_INPUT)
        return cls(content, sorted(lines, key=lambda line: (line.prefix, line.number)))

    def raw(self, line: BatchLine) -> bytes:
        return self.content[line.start : line.start + line.length]


@contextmanager
def results_of(file: Path) -> Iterator[tuple[BinaryIO, set[str]]]:
    """Hold a file of results against other commands; gives it, and the custom ids that have a result in it."""
    try:
        out = file.open("a+b")
    except OSError as error:
        raise ConfigError(f"output {file} cannot be written: {error.strerror}", param="output") from None
    with out:
        try:
            fcntl.flock(out, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"output {file} is being written by another command", param="output") from None
        out.seek(0)
        whole, ids = 0, set[str]()
        try:
            for line in out:
                if line.endswith(b"\n"):
                    ids.add(from_json(line)["custom_id"])
                    whole += len(line)
                elif not line.startswith(_BEGINNING[: len(line)]):
                    raise ValueError("no result was cut there")
        except (ValueError, KeyError, TypeError):
            message = f"output {file} is no file of results; allowed: one of an earlier run, or none"
            raise ConfigError(message, param="output") from None
        out.truncate(whole)
        yield out, ids


async def _run(settings: Settings, requests: BatchFile, left: Sequence[BatchLine], out: BinaryIO) -> int:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    from prolepsis.server.cli.engine import running

    async with running(settings) as engine, _services(engine) as services:
        with Progress(BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=stderr()) as progress:
            bar = progress.add_task("", total=len(requests.lines), completed=len(requests.lines) - len(left))
            return await run_lines(requests, left, out, services, lambda: progress.advance(bar))


@asynccontextmanager
async def _services(engine: "Running") -> AsyncIterator["Services"]:
    """Give what answers requests around an engine, as a server has it, without a store."""
    from prolepsis.control.store.store import unrecorded
    from prolepsis.control.web.context import Context
    from prolepsis.core.audit_event import discard
    from prolepsis.core.config import ServerConfig
    from prolepsis.core.telemetry.metrics import Metrics
    from prolepsis.server.app import build

    config = ServerConfig(store="none", replay_sample=0.0)
    context = Context(config=config, client=engine.client, metrics=Metrics(), store=unrecorded(), emit=discard)
    application = build(context, engine.tokenizer)
    async with application.router.lifespan_context(application):
        yield application.state.services


async def run_lines(
    requests: BatchFile, left: Sequence[BatchLine], out: BinaryIO, services: "Services", ran: Callable[[], None]
) -> int:
    """Write the results of lines as they come, as many lines at once as have places; return how many failed."""
    from prolepsis.control.web.caller import DEVELOPER
    from prolepsis.server.batches.run_line import NotNow, run_line
    from prolepsis.server.services import Models

    models, lines, failed = Models([services]), iter(left), 0

    async def answered(line: BatchLine) -> LineResult:
        while True:
            try:
                return await run_line(requests.raw(line), line.custom_id, DEVELOPER, models)
            except NotNow as later:
                await asyncio.sleep(later.wait_s)

    async def work() -> None:
        nonlocal failed
        for line in lines:
            result = await answered(line)
            out.write(f"{result.text}\n".encode())
            out.flush()
            os.fsync(out.fileno())
            failed += result.state == "failed"
            ran()

    async with asyncio.TaskGroup() as group:
        for _ in range(services.admission.num_places):
            group.create_task(work())
    return failed
