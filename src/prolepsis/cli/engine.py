"""Starts an engine for a command: downloads a missing known model, builds the engine, and closes it at the end."""

import ctypes
import gc
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prolepsis.cli.config import Settings
from prolepsis.cli.models import ensure_model
from prolepsis.cli.output import quiet_logs, stderr
from prolepsis.core.config import EngineConfig, ServerConfig

if TYPE_CHECKING:
    from prolepsis.engine.observer import EngineObserver
    from prolepsis.engine.thread import ThreadEngineClient
    from prolepsis.models.files.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Running:
    """An engine in its thread, and its model's tokenizer."""

    client: "ThreadEngineClient"
    tokenizer: "Tokenizer"


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


def start_engine(
    config: EngineConfig, observer: "EngineObserver | None" = None, server: ServerConfig | None = None
) -> Running:
    """Load the model and put an engine and its client together; `server` takes memory too.

    Raises `MemoryPlanError` if the machine has too little for all of them.
    """
    with loading():
        from prolepsis.models.files.store import resolve

        resolve(config.model, config.model_dir)  # quick, and names a model that is not here
        from prolepsis.engine.build import build_engine
        from prolepsis.engine.thread import ThreadEngineClient
        from prolepsis.kv.memory import MemoryUse
        from prolepsis.models.load import load_model

        target = load_model(config)
        reserved = [
            MemoryUse("response cache", server.response_cache_bytes if server else 0, "response_cache_bytes"),
            MemoryUse("answers kept for retries", server.idempotency_bytes if server else 0, "idempotency_bytes"),
        ]
        engine = build_engine(config, observer, target=target, reserved=reserved)
    return Running(ThreadEngineClient(engine), target.tokenizer)


@asynccontextmanager
async def running(settings: Settings) -> AsyncIterator[Running]:
    """Run the configured engine while the block runs; all requests must come from its event loop."""
    quiet_logs()
    ensure_model(settings)
    with stderr().status(f"loading {settings.engine.model}"):
        engine = start_engine(settings.engine)
    try:
        yield engine
    finally:
        await engine.client.close()
