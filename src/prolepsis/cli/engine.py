"""Starts an engine for a command: downloads a missing known model, builds the engine, and closes it at the end."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prolepsis.cli.config import Settings
from prolepsis.cli.models import ensure_model
from prolepsis.cli.output import quiet_logs, stderr
from prolepsis.core.config import EngineConfig

if TYPE_CHECKING:
    from prolepsis.engine.observer import EngineObserver
    from prolepsis.engine.thread import ThreadEngineClient
    from prolepsis.models.files.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Running:
    """An engine in its thread, and its model's tokenizer."""

    client: "ThreadEngineClient"
    tokenizer: "Tokenizer"


def start_engine(config: EngineConfig, observer: "EngineObserver | None" = None) -> Running:
    """Load the model and put an engine and its client together."""
    from prolepsis.models.files.store import resolve
    from prolepsis.models.files.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(resolve(config.model, config.model_dir))  # quick, and names a model that is not here
    from prolepsis.engine.build import build_engine
    from prolepsis.engine.thread import ThreadEngineClient

    return Running(ThreadEngineClient(build_engine(config, observer)), tokenizer)


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
