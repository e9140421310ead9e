"""Builds an engine in this process, and again after it ended, around the model that is loaded already."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from weakref import ReferenceType, ref

import structlog

from prolepsis.core.config import EngineConfig
from prolepsis.engine.build import build_engine
from prolepsis.engine.observer import EngineObserver
from prolepsis.engine.start import loading_again
from prolepsis.engine.thread import ThreadEngineClient
from prolepsis.kv.memory import MemoryUse
from prolepsis.models.load import LoadedModel, load_model

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class EngineStart:
    """Builds engines of one configuration one after the other."""

    config: EngineConfig
    target: LoadedModel
    observer: EngineObserver | None = None
    reserved: Sequence[MemoryUse] = ()
    load: Callable[[EngineConfig], LoadedModel] = load_model
    _last: ReferenceType[ThreadEngineClient] | None = field(default=None, init=False)

    def first(self) -> ThreadEngineClient:
        """Return an engine's client; raises what `build_engine` raises. Later engines have its context length."""
        client = ThreadEngineClient(
            build_engine(self.config, self.observer, target=self.target, reserved=self.reserved)
        )
        self._last = ref(client)
        self.config = self.config.model_copy(update={"max_model_len": client.info.max_model_len})
        return client

    async def again(self) -> ThreadEngineClient:
        """Return the client of another engine; the last one has ended and is closed."""
        return await asyncio.get_running_loop().run_in_executor(None, self._rebuilt)

    def _rebuilt(self) -> ThreadEngineClient:
        with loading_again():  # the K/V of the last engine, which refers to itself, makes room
            last = self._last() if self._last is not None else None
            if last is not None and last.watchdog.gave_up:
                log.warning("model_loaded_again", reason="a step of the last engine may still compute with it")
                self.target = self.load(self.config)
            return self.first()
