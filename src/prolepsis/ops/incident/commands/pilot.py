"""`prolepsis pilot`: what speculation brought to the traffic of a running server, against its live control."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from prolepsis.control.verdict.commands import VERDICTS
from prolepsis.control.web.drawing import interval
from prolepsis.core.files import write_output
from prolepsis.core.terminal.admin import Key, Url, ask
from prolepsis.core.terminal.documents import print_reply
from prolepsis.core.terminal.output import AsJson, command_group
from prolepsis.ops.console.render import page_alone
from prolepsis.ops.incident.period import parse_time

_FIGURES = ("figure", "canary", "control", "change=change:share", "n=num_canary", "n of control=num_control")
app = command_group("Report what speculation brought to the traffic of a running server.")
app.callback()(lambda: None)  # else the only command of the group would take its place


@app.command()
def report(
    *,
    url: Url,
    key: Key = None,
    since: Annotated[str, typer.Option(help="so long ago, such as 6h or 7d, or a time in ISO 8601")] = "7d",
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="write a page with pictures")] = None,
    as_json: AsJson = False,
) -> None:
    """Print the verdict on each rule, the figures of a period behind it, and what the evidence cannot say."""
    start = parse_time(since, datetime.now(UTC), "since").astimezone(UTC)
    reply = ask(url, key, "GET", f"{VERDICTS.path}?since={start:%Y-%m-%dT%H:%M:%SZ}", timeout_s=120.0)
    report = reply["report"]
    if html is not None:
        page = page_alone("ops/incident/templates/pilot.html", place=interval, verdicts=reply["verdicts"], **report)
        write_output(html, page.encode(), "html")
    shown = {"verdicts": reply["verdicts"], **report, "limits": [{"limit": text} for text in report["limits"]]}
    columns = {**VERDICTS.columns, "figures": _FIGURES, "limits": ("what the evidence cannot say=limit",)}
    print_reply(reply if as_json else shown, columns, as_json=as_json)
