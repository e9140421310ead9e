"""Starts an engine's process and waits until its model is loaded."""

import asyncio
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from prolepsis.core.config import EngineConfig
from prolepsis.core.errors import EngineDead
from prolepsis.engine.observer import EngineObserver
from prolepsis.engine.process.channel import Channel, read_now, write_now
from prolepsis.engine.process.client import ProcessEngineClient
from prolepsis.engine.process.messages import LogSettings, Start, Started, StartFailed
from prolepsis.kv.memory import MemoryUse
from prolepsis.models.files.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class SpawnedEngine:
    client: ProcessEngineClient
    tokenizer: Tokenizer
    compile_seconds: Sequence[float]
    """Compilation time of each file of native code that was compiled."""


@dataclass(slots=True)
class EngineSpawn:
    """Starts engines of one configuration one after the other, each in its own process."""

    config: EngineConfig
    observer: EngineObserver | None = None
    reserved: Sequence[MemoryUse] = ()
    logs: LogSettings | None = None

    def first(self) -> SpawnedEngine:
        """Return an engine; raises what `spawn_engine` raises. Later engines have its context length."""
        spawned = spawn_engine(self.config, self.observer, self.reserved, self.logs)
        self.config = self.config.model_copy(update={"max_model_len": spawned.client.info.max_model_len})
        return spawned

    async def again(self) -> ProcessEngineClient:
        """Return the client of another engine; the process of the last one has ended."""
        begun = _begun()
        load = partial(_loaded, begun, self.config, self.observer, self.reserved, self.logs)
        try:
            return (await asyncio.get_running_loop().run_in_executor(None, load)).client
        except asyncio.CancelledError:
            begun.process.kill()  # the thread that waits for it ends with it, and so does a server that stops
            raise


@dataclass(frozen=True, slots=True)
class _Begun:
    """A process that has not been told what to load."""

    process: "subprocess.Popen[bytes]"
    connection: socket.socket


def spawn_engine(
    config: EngineConfig,
    observer: EngineObserver | None = None,
    reserved: Sequence[MemoryUse] = (),
    logs: LogSettings | None = None,
) -> SpawnedEngine:
    """Load the model in a new process; raises what `start_engine` raises there, `EngineDead` if it ends by itself."""
    return _loaded(_begun(), config, observer, reserved, logs)


def _begun() -> _Begun:
    here, there = socket.socketpair()
    command = [sys.executable, "-m", "prolepsis.engine.process.host", str(there.fileno())]
    process = subprocess.Popen(command, pass_fds=(there.fileno(),))  # noqa: S603  # our own module
    there.close()
    return _Begun(process, here)


def _loaded(
    begun: _Begun,
    config: EngineConfig,
    observer: EngineObserver | None,
    reserved: Sequence[MemoryUse],
    logs: LogSettings | None,
) -> SpawnedEngine:
    process, here = begun.process, begun.connection
    try:
        write_now(here, Start(config, tuple(reserved), logs or LogSettings()))
        [answer] = read_now(here)
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
    assert isinstance(answer, Started), answer
    client = ProcessEngineClient(process, Channel(here), answer, observer, stuck_after_s=config.stuck_after_s)
    return SpawnedEngine(client, answer.tokenizer, answer.compile_seconds)
