"""An engine's host in a process of its own, so that no other Python code holds the interpreter lock while it steps.

The process is started with one end of a socket pair, and ends with the front end, however that ends.
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from prolepsis.core.config import EngineConfig
from prolepsis.core.engine_client import EngineClient
from prolepsis.core.errors import EngineDead
from prolepsis.core.figures import EngineObserver
from prolepsis.core.phases import Phases, phase, watching
from prolepsis.core.telemetry.logs import configure_logs
from prolepsis.engine.kv.memory import MemoryUse
from prolepsis.engine.start import start_engine
from prolepsis.engine.text.model_tokenizer import ModelTokenizer
from prolepsis.remote.channel import TO_FRONT_END, TO_HOST, front_end_channel, host_channel, read_now, write_now
from prolepsis.remote.host import Host, KeptFigures, portable
from prolepsis.remote.link import HostLink
from prolepsis.remote.messages import EngineStarted, LogSettings, Start, StartFailed, StartPhase, Status, ToFrontEnd


@dataclass(frozen=True, slots=True)
class SpawnedEngine:
    client: HostLink
    tokenizer: ModelTokenizer
    compile_seconds: Sequence[float]  # compilation time of each file of native code that was compiled


@dataclass(slots=True)
class EngineSpawn:
    """Starts engines of one configuration one after the other, each in its own process."""

    config: EngineConfig
    observer: EngineObserver | None = None
    reserved: Sequence[MemoryUse] = ()
    logs: LogSettings = field(default_factory=LogSettings)

    def first(self) -> SpawnedEngine:
        """Load the model in a new process; later engines have its context length.

        Raises what `start_engine` raises there, and `EngineDead` if the process ends by itself.
        """
        spawned = self._load(*_process())
        self.config = self.config.model_copy(update={"max_model_len": spawned.client.info.max_model_len})
        return spawned

    async def again(self) -> HostLink:
        """Return the client of another engine; the process of the last one has ended."""
        process, connection = _process()
        try:
            return (await asyncio.to_thread(self._load, process, connection)).client
        except asyncio.CancelledError:
            process.kill()  # the thread that waits for it ends with it, and so does a server that stops
            raise

    def _load(self, process: "subprocess.Popen[bytes]", here: socket.socket) -> SpawnedEngine:
        try:
            write_now(here, TO_HOST, Start(self.config, tuple(self.reserved), self.logs))
            answer = _ended_start(here)
        except BaseException as error:  # an interrupt too must leave no process
            here.close()
            process.kill()
            code = process.wait()
            if isinstance(error, EOFError | ConnectionError):
                raise EngineDead(f"the engine's process ended with status {code} while it loaded") from error
            raise
        if isinstance(answer, StartFailed):
            process.wait()
            here.close()
            raise answer.error
        assert isinstance(answer, EngineStarted), answer
        channel, lost_after_s = front_end_channel(here), self.config.stuck_after_s
        client = HostLink(channel, answer.status, self.observer, process=process, lost_after_s=lost_after_s)
        return SpawnedEngine(client, ModelTokenizer.of(answer.tokenizer), answer.compile_seconds)


def _ended_start(host: socket.socket) -> ToFrontEnd:
    """Return how a start ended in the other process; what that says of its phases is shown here."""
    answer = read_now(host, TO_FRONT_END)
    while isinstance(answer, StartPhase):
        now = answer
        with phase(now.what, now.total, in_bytes=now.in_bytes) as shown:
            while isinstance(answer, StartPhase) and answer.what == now.what:
                shown.done, shown.total = answer.done, answer.total
                answer = read_now(host, TO_FRONT_END)
            shown.done = shown.total or shown.done
    return answer


def _process() -> "tuple[subprocess.Popen[bytes], socket.socket]":
    """Return a process that waits for `Start`, and this end of its socket."""
    here, there = socket.socketpair()
    command = [sys.executable, "-m", "prolepsis.remote.process", str(there.fileno())]
    process = subprocess.Popen(command, pass_fds=(there.fileno(),))  # noqa: S603  # our own module
    there.close()
    return process, here


def main(connection: socket.socket) -> None:
    """Load what the front end asks for, and serve it."""
    start = read_now(connection, TO_HOST)
    assert isinstance(start, Start)
    configure_logs(start.logs.level, as_json=start.logs.as_json)
    figures = KeptFigures()

    def report(phases: Phases) -> None:
        now = phases.current
        try:
            write_now(connection, TO_FRONT_END, StartPhase(now.what, now.total, now.in_bytes, now.done))
        except OSError:  # the front end is gone
            os._exit(1)

    try:
        with watching(Phases(), report):
            engine = start_engine(start.config, figures, start.reserved)
    except Exception as error:  # the front end raises it
        write_now(connection, TO_FRONT_END, StartFailed(portable(error)))
        return
    from prolepsis.engine.native.build import compile_seconds

    started = EngineStarted(Status.of(engine.client), engine.tokenizer.state, tuple(compile_seconds))
    write_now(connection, TO_FRONT_END, started)
    for number in (signal.SIGINT, signal.SIGTERM):  # a terminal and a service manager send them to the server, too
        signal.signal(number, signal.SIG_IGN)
    asyncio.run(_serve(connection, engine.client, figures))


async def _serve(connection: socket.socket, client: EngineClient, figures: KeptFigures) -> None:
    await Host(client, figures).serve(host_channel(connection))
    await client.close()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # while it loads
    main(socket.socket(fileno=int(sys.argv[1])))
