"""`prolepsis show timeline` and `prolepsis incident`: what happened, for those who look for the cause."""

import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from sqlalchemy import Connection

from prolepsis import __version__
from prolepsis.control.audit import chain
from prolepsis.control.audit.commands.acts import actor, record_act
from prolepsis.control.audit.commands.log import RemoteLog, opened_log
from prolepsis.control.audit.entry import AuditEntry
from prolepsis.control.store.configured import StoreOption, ready_database
from prolepsis.core.errors import ConfigError, ProlepsisError
from prolepsis.core.files import write_output
from prolepsis.core.terminal.admin import Key, ServerUrl, Url
from prolepsis.core.terminal.flags import settings_here
from prolepsis.core.terminal.output import AsJson, note, print_json, print_table, shown_time, warn
from prolepsis.ops.incident import stored
from prolepsis.ops.incident.period import Period, period
from prolepsis.ops.incident.prometheus import Firing, Prometheus, times_of
from prolepsis.ops.incident.snapshot import Source, archive, made, read_part
from prolepsis.ops.incident.sources import PARTS, Server, lines_of
from prolepsis.ops.incident.timeline import markdown
from prolepsis.ops.incident.timeline import timeline as timeline_of
from prolepsis.ops.monitoring.files import dashboards, filled

PrometheusUrl = Annotated[
    str | None, typer.Option("--prometheus", metavar="URL", help="address of Prometheus, for alerts and series")
]
From = Annotated[
    str, typer.Option("--from", metavar="TIME", help="so long ago, as 15m, 6h, 7d; or 2026-11-22T18:30 (UTC)")
]
To = Annotated[str, typer.Option("--to", metavar="TIME", help="likewise, or now")]
_COLUMNS = ["time (UTC)", "kind", "what", "who", "subject", "details"]
_LEAST_RATE_S = 60.0  # over which a rate is taken: four scrapes
_Value = TypeVar("_Value")


def timeline(
    *,
    start: From = "1h",
    end: To = "now",
    prometheus: PrometheusUrl = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="print Markdown")] = False,
    store: StoreOption = None,
    url: ServerUrl = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Show changes, rollouts, alerts, deployments and events of breakers and drift in one order."""
    window = period(start, end, datetime.now(UTC))
    with opened_log(store, url, key) as log:
        entries = list(log.written(window.start, window.end))
    rows = timeline_of(entries, Prometheus(prometheus).firing(window) if prometheus else [])
    if as_json:
        print_json([asdict(row) for row in rows])
    elif as_markdown:
        print(markdown(rows, f"Timeline, {window}"), end="")
    else:
        cells = [[shown_time(row.at), row.kind, row.what, row.who, row.subject, row.details] for row in rows]
        print_table(f"timeline, {window}", _COLUMNS, cells, in_order=True)


def incident(
    *,
    start: From = "15m",
    end: To = "now",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="default: incident-TIME.tar.gz here")
    ] = None,
    log: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="log of the server, text or JSON lines; may be repeated")
    ] = None,
    prometheus: PrometheusUrl = None,
    store: StoreOption = None,
    url: Url,
    key: Key = None,
) -> None:
    """Gather metrics, changes, states, slow and failed requests, versions, configuration and logs, all redacted.

    A source that cannot be read is named in the index with the reason: of a server that is down the store remains.
    """
    now = datetime.now(UTC)
    window = period(start, end, now)
    file = output or Path(f"incident-{now:%Y%m%dT%H%M%SZ}.tar.gz")
    server = Server(url, key)
    sources = [
        *_timeline_and_changes(window, store, RemoteLog(url, key), prometheus),
        *_stored_sources(window, store),
        Source("metrics.txt", "metrics of the moment, in Prometheus's form", partial(server.text, "/metrics")),
        *(Source(f"server/{at}", about, partial(server.document, path)) for at, (path, about) in PARTS.items()),
        *_series(window, prometheus),
        *_local_sources(store, log or [], window),
    ]
    parts = [*map(read_part, sources)]
    write_output(file, archive(parts, window, now))
    record_act(made(parts, window, actor()), store=store)
    for reason in dict.fromkeys(part.missing for part in parts if part.missing):
        warn(f"{', '.join(part.source.file for part in parts if part.missing == reason)} missing: {reason}")
    number = sum(not part.missing for part in parts)
    note(f"wrote {file}: {number} of {len(parts)} files and an index, redacted")


def _timeline_and_changes(
    window: Period, store: str | None, remote: RemoteLog, prometheus: str | None
) -> Iterator[Source]:
    @cache
    def entries() -> Sequence[AuditEntry]:
        """Read the entries from the store, or from the server if there is no store."""
        try:
            return _in_store(store, lambda connection: list(chain.written(connection, window.start, window.end)))
        except ProlepsisError as of_store:
            try:
                return list(remote.written(window.start, window.end))
            except ProlepsisError as of_server:
                raise ConfigError(f"{of_store}; {of_server}") from None

    @cache
    def alerts() -> Sequence[Firing]:
        return Prometheus(prometheus).firing(window) if prometheus else []

    def joined() -> str:
        known = read_part(Source("", "", alerts)).content  # alerts.json says why there are none
        return markdown(timeline_of(entries(), known if isinstance(known, list) else []), f"Timeline, {window}")

    yield Source("timeline.md", "changes, rollouts, alerts, deployments and events in one order", joined)
    yield Source("changes.json", "the audit entries of it", lambda: [entry.plain() for entry in entries()])
    if prometheus:
        yield Source("alerts.json", "alerts that fired", lambda: [asdict(alert) for alert in alerts()])


def _stored_sources(window: Period, store: str | None) -> Iterator[Source]:
    def of(read: Callable[[Connection], object]) -> Callable[[], object]:
        return partial(_in_store, store, read)

    def rollouts() -> object:
        with ready_database(store) as database:
            return stored.rollouts(database)

    slow = "how requests ended, and the slow and failed ones"
    yield Source("requests.json", slow, of(lambda connection: stored.requests(connection, window)))
    yield Source("started.json", "the last start of a server: versions and configuration", of(stored.started))
    yield Source("store/policies.json", "the policy in use and the newest versions", of(stored.policies))
    yield Source("store/rollouts.json", "rollouts with their events", rollouts)
    yield Source("store/cost.json", "what the device cost in the last hours", of(stored.cost))


def _series(window: Period, prometheus: str | None) -> Iterator[Source]:
    def panels() -> object:
        asking, times = Prometheus(prometheus or ""), times_of(window)
        interval, shown, row = f"{max(_LEAST_RATE_S, times.step_s):.0f}s", [], ""
        for dashboard in dashboards():
            for panel in dashboard["panels"]:
                if panel["type"] == "row":
                    row = panel["title"]
                    continue
                queries = [
                    {
                        "expr": target["expr"],
                        "legend": target["legendFormat"].removeprefix("__auto"),
                        "lines": [asdict(line) for line in asking.lines(filled(target["expr"], interval), times)],
                    }
                    for target in panel["targets"]
                ]
                shown.append(
                    {
                        "dashboard": dashboard["title"],
                        "row": row,
                        "panel": panel["title"],
                        "about": panel["description"],
                        "unit": panel["fieldConfig"]["defaults"]["unit"],
                        "queries": queries,
                    }
                )
        return {"times": asdict(times), "panels": shown}

    if prometheus:
        yield Source("series.json", "what the panels of the dashboards showed, with the values of each line", panels)


def _local_sources(store: str | None, logs: Sequence[Path], window: Period) -> Iterator[Source]:
    def here() -> object:
        sections = settings_here(store=store).sections()
        return {
            "prolepsis": __version__,
            "python": platform.python_version(),
            "platform": platform.platform(),
            "configuration": [section.model_dump(mode="json") for section in sections],
        }

    yield Source("here.json", "versions and configuration where the snapshot was made", here)
    for number, file in enumerate(logs, 1):
        name = "log.txt" if len(logs) == 1 else f"log-{number}.txt"
        yield Source(name, f"lines of {file.name} in the period", partial(lines_of, file, window))


def _in_store(store: str | None, read: Callable[[Connection], _Value]) -> _Value:
    with ready_database(store) as database, database.read() as connection:
        return read(connection)
