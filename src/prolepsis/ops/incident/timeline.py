"""The timeline: changes, events of the safety features, rollouts, deployments and alerts in one order."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from types import MappingProxyType
from typing import Literal

from jinja2 import Environment, PackageLoader, StrictUndefined

from prolepsis.control.audit.changes import without_repeats
from prolepsis.control.audit.entry import AuditEntry
from prolepsis.control.audit.summary import changed_fields, version_words
from prolepsis.core.terminal.output import shown_time
from prolepsis.ops.incident.prometheus import Firing

Kind = Literal["alert", "deployment", "rollout", "event", "use", "change"]
"""event: what a safety feature did or found by itself; use: what clients keep and remove, and who signed in; change:
everything else that the audit log has."""
LONGEST_DETAILS = 100
_MOST_FIELDS = 4
_EVENTS = frozenset({"breaker", "drift", "replay", "eligibility"})
_BY_OPERATORS = frozenset({"breaker.forced_open", "breaker.forced_closed", "breaker.metrics_only", "drift.reset"})
_USES = frozenset({"batch", "file", "response", "console", "request"})
_BY_CLIENTS = frozenset({"corpus.added"})
ALERTMANAGER = "Prometheus"


@dataclass(frozen=True, slots=True)
class Happening:
    """One row."""

    at: float  # Unix time
    kind: Kind
    what: str
    who: str
    subject: str
    details: str


def timeline(entries: Iterable[AuditEntry], alerts: Iterable[Firing] = ()) -> list[Happening]:
    """Return what happened, the earliest first, and each change once."""
    rows = [of_entry(entry) for entry in without_repeats([*entries])]
    rows += [row for alert in alerts for row in _of_alert(alert)]
    return sorted(rows, key=lambda row: row.at)


def of_entry(entry: AuditEntry) -> Happening:
    """Return the row of an audit entry, whose details may be erased."""
    at = datetime.fromisoformat(entry.at).timestamp()
    if entry.details is None:
        return Happening(at, _kind(entry), entry.action, "erased", "", "")
    details = entry.details
    if entry.action.startswith("server."):
        words = list(version_words(entry.versions))
    else:
        words = list(islice(changed_fields(details.before, details.after), _MOST_FIELDS))
    return Happening(at, _kind(entry), entry.action, details.actor, details.subject, _short(", ".join(words)))


def markdown(rows: Iterable[Happening], title: str) -> str:
    """Return the timeline as a Markdown document."""
    return document("timeline.md", rows=rows, title=title)


def document(template: str, filters: Mapping[str, Callable[..., str]] = MappingProxyType({}), **values: object) -> str:
    """Return a Markdown document of this package; `cell` escapes what its tables hold."""
    made = Environment(
        loader=PackageLoader(__package__),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # noqa: S701  # Markdown
    )
    made.filters |= {"cell": cell, "shown_at": shown_time, "number": "{:,}".format, **filters}
    return made.get_template(template).render(values).rstrip() + "\n"


def cell(text: str) -> str:
    """Return a text as a cell of a Markdown table."""
    return " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")


def _kind(entry: AuditEntry) -> Kind:
    area = entry.action.partition(".")[0]
    if area == "server":
        return "deployment"
    if area == "rollout":
        return "rollout"
    if area in _USES or entry.action in _BY_CLIENTS:
        return "use"
    return "event" if area in _EVENTS and entry.action not in _BY_OPERATORS else "change"


def _of_alert(alert: Firing) -> Iterator[Happening]:
    shown = {name: value for name, value in alert.labels.items() if name not in ("alertname", "severity")}
    subject = alert.labels.get("severity", "")
    labels = _short(", ".join(f"{name} {value}" for name, value in shown.items()))
    fires = "fires already" if alert.from_before else "fires"
    yield Happening(alert.since, "alert", f"{alert.name} {fires}", ALERTMANAGER, subject, labels)
    if alert.until is not None:
        yield Happening(alert.until, "alert", f"{alert.name} ends", ALERTMANAGER, subject, labels)


def _short(text: str) -> str:
    return text if len(text) <= LONGEST_DETAILS else f"{text[: LONGEST_DETAILS - 3]}..."
