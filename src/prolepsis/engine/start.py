"""Loads a model and starts an engine around it. What is slow to import is imported here when it is asked for."""

import asyncio
import ctypes
import gc
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from weakref import ReferenceType, ref

import structlog

from prolepsis.core.config import EngineConfig
from prolepsis.core.memory_failures import memory_failures
from prolepsis.core.phases import phase
from prolepsis.engine.kv.machine import limited_memory
from prolepsis.engine.kv.memory import MemoryUse, Room

if TYPE_CHECKING:
    from prolepsis.core.figures import EngineObserver
    from prolepsis.engine.models.load import LoadedModel
    from prolepsis.engine.text.model_tokenizer import ModelTokenizer
    from prolepsis.engine.thread import ThreadEngineClient

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Running:
    """An engine in its thread, and its model's tokenizer."""

    client: "ThreadEngineClient"
    tokenizer: "ModelTokenizer"
    restart: "Callable[[], Awaitable[ThreadEngineClient]] | None" = None
    """Builds the engine that takes its place after it ended."""


@contextmanager
def loading() -> Iterator[None]:
    """Put the garbage collector off while modules and models load; at the end return to the system what they freed.

    The collector would visit the growing number of objects again and again (a quarter of the time), though little of
    it is garbage. It passes over them later, too. Weights on their way leave holes of 100 MB.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
        if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:  # the GNU C library's
            trim(0)


@contextmanager
def loading_again() -> Iterator[None]:
    """Do `loading` after an engine ended: it was left out of collections, and its memory has to go first."""
    gc.unfreeze()
    gc.collect()
    with loading():
        yield


@dataclass(slots=True)
class EngineStart:
    """Builds engines of one configuration one after the other, in this process, around a model that is loaded."""

    config: EngineConfig
    target: "LoadedModel"
    observer: "EngineObserver | None" = None
    reserved: Sequence[MemoryUse] = ()
    load: "Callable[[EngineConfig], LoadedModel] | None" = None
    _last: "ReferenceType[ThreadEngineClient] | None" = field(default=None, init=False)

    def first(self) -> "ThreadEngineClient":
        """Return an engine's client; raises what `build_engine` raises. Later engines have its context length."""
        from prolepsis.engine.build import build_engine
        from prolepsis.engine.thread import ThreadEngineClient

        engine = build_engine(self.config, self.observer, target=self.target, reserved=self.reserved)
        client = ThreadEngineClient(engine)
        self._last = ref(client)
        self.config = self.config.model_copy(update={"max_model_len": client.info.max_model_len})
        return client

    async def again(self) -> "ThreadEngineClient":
        """Return the client of another engine; the last one has ended and is closed."""
        return await asyncio.get_running_loop().run_in_executor(None, self._rebuilt)

    def _rebuilt(self) -> "ThreadEngineClient":
        from prolepsis.engine.models.load import load_model

        with loading_again():  # the K/V of the last engine, which refers to itself, makes room
            last = self._last() if self._last is not None else None
            if last is not None and last.watchdog.gave_up:
                smaller = {"max_step_tokens": max(16, self.config.max_step_tokens // 4)}  # shorter steps, which end
                self.config = self.config.model_copy(update=smaller)
                reason = "a step of the last engine may still compute with it"
                log.warning("model_loaded_again", reason=reason, **smaller)
                self.target = (self.load or load_model)(self.config)
            return self.first()


LIBRARIES = MemoryUse("libraries of the engine", 512 << 20)
"""What they map; where that fails some of them end the process instead of raising an error."""


def start_engine(
    config: EngineConfig, observer: "EngineObserver | None" = None, reserved: Sequence[MemoryUse] = ()
) -> Running:
    """Load the model and put an engine and its client together; `reserved` is what else takes memory.

    Raises `MemoryPlanError` if the machine has too little for all of them, `ConfigError` and `ModelError` for what
    cannot be used: what can be checked without the model is checked before it is loaded.
    """
    with loading(), memory_failures():
        from prolepsis.engine.models.files.store import resolve

        model = resolve(config.model, config.model_dir)  # quick, and names a model that is not here
        if (limited := limited_memory()) is not None:
            size = model.stat().st_size if model.is_file() else 0
            room = Room(limited.place, limited.free, [LIBRARIES, MemoryUse(f"weights of {model.name}", size)])
            room.check(lower="raise the limit, or choose a smaller model")
        with phase("loading libraries"):
            from prolepsis.engine.build import REMOTE, proposer_names
        from prolepsis.engine.drafting.remote.link import shared_key

        if REMOTE in proposer_names(config):
            shared_key(config)
        from prolepsis.engine.models.load import load_model

        target = load_model(config)
        start = EngineStart(config, target, observer, reserved)
        client = start.first()
    return Running(client, target.tokenizer, start.again)
