"""`prolepsis incident`: what happened, for those who look for the cause."""

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated

import typer

from prolepsis.cli.admin import Key
from prolepsis.cli.audit_log import ServerUrl, opened_log
from prolepsis.cli.output import EPILOG, AsJson, command_group, print_json, print_table
from prolepsis.cli.store import StoreOption
from prolepsis.incident.period import period
from prolepsis.incident.prometheus import Prometheus
from prolepsis.incident.timeline import markdown, shown_at
from prolepsis.incident.timeline import timeline as timeline_of

app = command_group("Show what happened in an incident, and hand it over in one file.")

PrometheusUrl = Annotated[
    str | None, typer.Option("--prometheus", metavar="URL", help="address of Prometheus, for the alerts that fired")
]
_COLUMNS = ["time (UTC)", "kind", "what", "who", "subject", "details"]


@app.callback()
def group() -> None:
    """Keep `timeline` a command of its own although it is the only one."""


@app.command(epilog=EPILOG)
def timeline(
    *,
    start: Annotated[
        str, typer.Option("--from", metavar="TIME", help="so long ago, as 15m, 6h, 7d; or 2026-11-22T18:30 (UTC)")
    ] = "1h",
    end: Annotated[str, typer.Option("--to", metavar="TIME", help="likewise, or now")] = "now",
    prometheus: PrometheusUrl = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="print Markdown")] = False,
    store: StoreOption = None,
    url: ServerUrl = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Show changes, rollouts, alerts, deployments and events of breakers and drift in one order."""
    asked = period(start, end, datetime.now(UTC))
    with opened_log(store, url, key) as log:
        entries = list(log.written(asked.start, asked.end))
    alerts = Prometheus(prometheus).firing(asked) if prometheus else []
    rows = timeline_of(entries, alerts)
    if as_json:
        print_json([asdict(row) for row in rows])
    elif as_markdown:
        print(markdown(rows, f"Timeline, {asked}"), end="")
    else:
        cells = [[shown_at(row.at), row.kind, row.what, row.who, row.subject, row.details] for row in rows]
        print_table(f"timeline, {asked}", _COLUMNS, cells, in_order=True)
