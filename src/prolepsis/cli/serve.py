"""`prolepsis serve`: the HTTP server around one engine."""

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from prolepsis.cli.config import Settings
from prolepsis.cli.flags import configured
from prolepsis.cli.output import NOT_SERVED, print_error
from prolepsis.core.config import EngineConfig, ServerConfig
from prolepsis.core.errors import ConfigError

if TYPE_CHECKING:
    from prolepsis.api.run import StartedEngine
    from prolepsis.telemetry.metrics import Metrics

ADDRESS_FIELDS = ("host", "port")
LogLevel = Literal["debug", "info", "warning", "error"]


@configured(EngineConfig, ServerConfig)
def serve(
    settings: Settings,
    log_level: Annotated[LogLevel, typer.Option(help="least severity of log lines")] = "info",
    log_json: Annotated[bool, typer.Option("--log-json", help="write log lines as JSON")] = False,
) -> None:
    """Serve a model over HTTP with OpenAI's API until interrupted."""
    from prolepsis.cli.engine import loading, start_engine
    from prolepsis.cli.models import ensure_model
    from prolepsis.telemetry.logs import configure_logs

    configure_logs(log_level, as_json=log_json)
    with loading():
        from prolepsis.api import run

    def start(config: EngineConfig, metrics: "Metrics") -> "StartedEngine":
        ensure_model(settings)
        engine = start_engine(config, metrics, settings.server)
        return run.StartedEngine(engine.client, engine.tokenizer)

    try:
        run.serve(settings.engine, settings.server, start)
    except ConfigError as error:
        if error.param not in ADDRESS_FIELDS:
            raise
        print_error(error)
        raise typer.Exit(NOT_SERVED) from error
