"""`prolepsis check`: the first days of an adoption in minutes, with one verdict."""

import asyncio
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from prolepsis.core.config import EngineConfig
from prolepsis.core.errors import ConfigError
from prolepsis.core.terminal.admin import Key, ServerUrl, server_in_place
from prolepsis.core.terminal.config import Settings
from prolepsis.core.terminal.flags import configured
from prolepsis.core.terminal.output import INTERRUPTED, AsJson, note
from prolepsis.lab.measure.prompts import DEFAULT_PROMPTS


@configured(EngineConfig)
def check(
    settings: Settings,
    file: Annotated[
        Path | None, typer.Argument(metavar="[PROMPTS|TRACE]", help="JSON lines; default: a small set in the package")
    ] = None,
    *,
    url: ServerUrl = None,
    key: Key = None,
    minutes: Annotated[float, typer.Option(min=0.05, help="time for all of it, once the model is loaded")] = 3.0,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="what is found, as JSON, written after each part")
    ] = Path("check.json"),
    as_json: AsJson = False,
) -> None:
    """Say whether speculation is worth a pilot on your traffic: exit status 0 go, 1 do not, 6 not known yet."""
    from prolepsis.lab.check.parts import PilotCheck
    from prolepsis.lab.check.verdict import STATUSES
    from prolepsis.lab.measure.provenance import provenance

    server = server_in_place(url, None, "")
    prompts = file or Path(str(files("prolepsis.lab.measure") / DEFAULT_PROMPTS))
    if not prompts.is_file():  # before a model is loaded
        raise ConfigError(f"{prompts} is not there; allowed: a file with prompts, or a trace", param="file")
    check, interrupted = PilotCheck(output, minutes, prompts, is_own=file is not None), False
    parts = "machine and settings, traffic classes; then plain against speculated answers, 1 and 4 at once"
    note(f"{minutes:g} min{'' if server else ', once the model is loaded'}: {parts}")
    try:
        asyncio.run(check.of_engine(settings) if server is None else check.of_server(server, key))
    except KeyboardInterrupt:
        interrupted = True
    finally:
        check.keep(is_interrupted=interrupted, provenance=provenance({}, {}))
    check.show(as_json=as_json)
    raise typer.Exit(INTERRUPTED if interrupted else STATUSES[check.known.word])
