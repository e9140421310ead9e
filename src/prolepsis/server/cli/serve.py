"""`prolepsis serve`: the HTTP server around one engine."""

from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from prolepsis.core.config import EngineConfig, ServerConfig
from prolepsis.core.errors import ConfigError, EngineDead
from prolepsis.core.extras import ENGINE, named
from prolepsis.core.terminal.config import Settings
from prolepsis.core.terminal.flags import configured
from prolepsis.core.terminal.output import NOT_SERVED, print_error, print_facts, quiet_logs, stderr
from prolepsis.core.terminal.phases import shown_phases

if TYPE_CHECKING:
    from prolepsis.adapters.ray.autoscaling import Scaling
    from prolepsis.core.telemetry.metrics import Metrics
    from prolepsis.remote.messages import LogSettings
    from prolepsis.server.banner import Banner
    from prolepsis.server.run import StartedEngine, StartEngine

ADDRESS_FIELDS = ("host", "port")
LogLevel = Literal["debug", "info", "warning", "error"]


@configured(EngineConfig, ServerConfig)
def serve(
    settings: Settings,
    log_level: Annotated[LogLevel, typer.Option(help="least severity of log lines")] = "info",
    log_json: Annotated[bool, typer.Option("--log-json", help="write log lines as JSON")] = False,
) -> None:
    """Serve a model over HTTP with OpenAI's API until interrupted."""
    if settings.engine.engine != "upstream":
        ENGINE.require(f"engine {settings.engine.engine}", "engine")
    from prolepsis.core.telemetry.logs import configure_logs
    from prolepsis.engine.start import loading
    from prolepsis.remote.messages import LogSettings

    configure_logs(log_level, as_json=log_json)
    is_seen = stderr().is_terminal and not log_json and log_level == "info"
    if is_seen:  # phases and a banner take the place of the lines of a start
        quiet_logs()
    server, start = settings.server, ExitStack()

    def on_ready(banner: "Banner") -> None:
        start.close()
        if is_seen:
            configure_logs(log_level)
            print_facts([(name.replace("_", " "), value) for name, value in asdict(banner).items()], stderr())

    try:
        with start:
            start.enter_context(shown_phases())
            with loading():
                from prolepsis.server import run
            if settings.engine.engine == "upstream":
                server = named("adapters.upstream.capabilities:server_config")(server, settings.origins)
            start_engine = partial(_start_engine, settings, LogSettings(log_level, log_json))
            run.serve(settings.engine, server, start_engine, on_ready)
    except (ConfigError, EngineDead) as error:
        if isinstance(error, ConfigError) and error.param not in ADDRESS_FIELDS:
            raise
        print_error(error)
        raise typer.Exit(NOT_SERVED) from error


def _start_engine(settings: Settings, logs: "LogSettings", config: EngineConfig, metrics: "Metrics") -> "StartedEngine":
    """Start what computes: upstream engines, replicas, an engine in its own process, or one in this process."""
    from prolepsis.engine.commands.downloads import ensure_model
    from prolepsis.engine.kv.memory import MemoryUse
    from prolepsis.server.run import StartedEngine

    ensure_model(settings)
    if config.engine == "upstream":
        start: StartEngine = named("adapters.upstream.start:start_upstream")
        return start(config, metrics)
    scaling: Scaling = named("adapters.ray.autoscaling:Scaling").of(settings.server)
    if scaling.most > 1:
        started: StartedEngine = named("adapters.ray.start:start_replicas")(
            config, scaling, metrics, settings.server.ray_address, logs
        )
        return started
    server = settings.server
    reserved = [  # of the machine's memory, besides the engine
        MemoryUse("response cache", server.response_cache_bytes, "response_cache_bytes"),
        MemoryUse("answers kept for retries", server.idempotency_bytes, "idempotency_bytes"),
    ]
    if server.engine_process == "on":
        if config.engine == "vllm":
            raise ConfigError("engine_process is 'on'; allowed with engine vllm: off", param="engine_process")
        from prolepsis.remote.process import EngineSpawn

        spawn = EngineSpawn(config, metrics, reserved, logs)
        spawned = spawn.first()
        return StartedEngine(spawned.client, spawned.tokenizer, spawned.compile_seconds, spawn.again)
    from prolepsis.engine.native.build import compile_seconds
    from prolepsis.server.cli.engine import start_configured

    engine = start_configured(config, metrics, reserved)
    return StartedEngine(engine.client, engine.tokenizer, compile_seconds, engine.restart)
