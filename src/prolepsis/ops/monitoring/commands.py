"""`prolepsis monitoring`: what Prometheus, Alertmanager and Grafana need to watch a server."""

from pathlib import Path
from typing import Annotated

import typer

from prolepsis.core.terminal.output import note
from prolepsis.ops.monitoring.files import RUNBOOK_URL, monitoring_files, shipped, write_monitoring
from prolepsis.ops.monitoring.objectives import parse_objectives, read_objectives


def monitoring(
    folder: Annotated[Path, typer.Argument(help="folder that the files are written to")],
    *,
    slos: Annotated[
        Path | None, typer.Option(help="objectives in Sloth's schema; default: the package's own, written too")
    ] = None,
    runbook_url: Annotated[
        str, typer.Option(help="address of a runbook, for the links of alerts; {name} stands for the name of its page")
    ] = RUNBOOK_URL,
) -> None:
    """Write dashboards for Grafana, and rules and settings for Prometheus and Alertmanager; old files are replaced."""
    objectives = read_objectives(slos) if slos else parse_objectives(shipped("slos.yaml"), "slos.yaml")
    files = dict(monitoring_files(objectives, runbook_url))
    if slos is None:
        files["slos.yaml"] = shipped("slos.yaml")
    write_monitoring(folder, files)
    note(f"{len(files)} files are in {folder}: {', '.join(files)}")
