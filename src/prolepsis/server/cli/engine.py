"""Starts an engine for a command: downloads a missing known model, builds the engine, and closes it at the end."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from prolepsis.core.config import EngineConfig
from prolepsis.core.errors import ConfigError
from prolepsis.core.extras import named
from prolepsis.core.terminal.config import Settings
from prolepsis.core.terminal.output import quiet_logs
from prolepsis.core.terminal.phases import shown_phases
from prolepsis.engine.commands.downloads import ensure_model

if TYPE_CHECKING:
    from collections.abc import Sequence

    from prolepsis.core.figures import EngineObserver
    from prolepsis.engine.kv.memory import MemoryUse
    from prolepsis.engine.start import Running


def start_configured(
    config: EngineConfig, observer: "EngineObserver | None" = None, reserved: "Sequence[MemoryUse]" = ()
) -> "Running":
    """Load the model and start what the configuration names as engine; raises what that raises."""
    if config.engine == "vllm":
        engine: Running = named("adapters.vllm.start:start_vllm")(config, observer)
        return engine
    if config.engine == "upstream":
        message = "engine is 'upstream'; allowed with this command: prolepsis, vllm; `prolepsis serve` takes upstream"
        raise ConfigError(message, param="engine")
    from prolepsis.engine.start import start_engine

    return start_engine(config, observer, reserved)


@asynccontextmanager
async def running(settings: Settings) -> AsyncIterator["Running"]:
    """Run the configured engine while the block runs; all requests must come from its event loop."""
    quiet_logs()
    with shown_phases():
        ensure_model(settings)
        engine = start_configured(settings.engine)
    try:
        yield engine
    finally:
        await engine.client.close()
