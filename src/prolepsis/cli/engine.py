"""Starts an engine for a command: downloads a missing known model, builds the engine, and closes it at the end."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from prolepsis.cli.config import Settings
from prolepsis.cli.models import ensure_model
from prolepsis.cli.output import quiet_logs, stderr
from prolepsis.engine.start import start_engine

if TYPE_CHECKING:
    from prolepsis.engine.start import Running


@asynccontextmanager
async def running(settings: Settings) -> AsyncIterator["Running"]:
    """Run the configured engine while the block runs; all requests must come from its event loop."""
    quiet_logs()
    ensure_model(settings)
    with stderr().status(f"loading {settings.engine.model}"):
        engine = start_engine(settings.engine)
    try:
        yield engine
    finally:
        await engine.client.close()
