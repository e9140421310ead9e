"""`prolepsis review`: the packs for weekly, monthly and quarterly reviews."""

from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer
from sqlalchemy import Connection

from prolepsis.control.audit import chain
from prolepsis.control.policy import versions
from prolepsis.control.policy.check import parse_policy
from prolepsis.control.store.configured import StoreOption, ready_database
from prolepsis.control.verdict.stored import VERDICTS_KEPT
from prolepsis.core.errors import ConfigError
from prolepsis.core.files import write_output
from prolepsis.core.terminal.output import AsJson, note, print_json
from prolepsis.ops.incident.commands.incident import PrometheusUrl, To
from prolepsis.ops.incident.period import Period, parse_time
from prolepsis.ops.incident.prometheus import Prometheus
from prolepsis.ops.incident.review import DAYS, Review, budgets, page
from prolepsis.ops.incident.tickets import post_new
from prolepsis.ops.incident.timeline import of_entry, timeline
from prolepsis.ops.incident.week import WeekFigures, figures

_SWAPS = 20  # newest exchanges of draft heads that are read
_COUNTED = {
    "requests replayed: {outcome}": "sum by (outcome) (increase(prolepsis_replays_total[{span}]))",
    "answers changed or ended by output policies: {policy}, {decision}": "sum by (policy, decision) (increase("
    'prolepsis_output_policy_decisions_total{{decision=~"rewrite|stop"}}[{span}]))',
    "faults of output policies: {policy}": "sum by (policy) (increase(prolepsis_output_policy_faults_total[{span}]))",
    "requests refused by role or policy": 'sum(increase(prolepsis_http_requests_total{{status="403"}}[{span}]))',
}
"""What the safety audit has of Prometheus: texts and queries."""
_BUDGETS = "slo:period_error_budget_remaining:ratio"


def review(
    *,
    length: Annotated[
        str, typer.Option("--period", help="day, week, month or quarter; compared with the one before")
    ] = "week",
    end: To = "now",
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="default: stdout")] = None,
    prometheus: PrometheusUrl = None,
    tickets: Annotated[
        str | None, typer.Option(metavar="URL", help="webhook that gets each thing to look at once, as JSON")
    ] = None,
    store: StoreOption = None,
    as_json: AsJson = False,
) -> None:
    """Write what a review needs: budgets, savings, acceptance by class, failures, cost, changes, what to look at."""
    until = parse_time(end, datetime.now(UTC), "to")
    if length not in DAYS:
        raise ConfigError(f"period is {length!r}; allowed: {', '.join(DAYS)}", param="period")
    span = timedelta(days=DAYS[length])
    reviewed = _review(Period(until - span, until), Period(until - 2 * span, until - span), prometheus, store)
    if tickets is not None:
        with ready_database(store) as database:
            number = post_new(reviewed.findings, tickets, length, until, database)
        note(f"posted {number} new of {len(reviewed.findings)} tickets")
    if as_json:
        print_json(_plain(reviewed))
    elif output is None:
        print(page(reviewed), end="")
    else:
        write_output(output, page(reviewed).encode())
        note(f"wrote {output}: {len(reviewed.findings)} things to look at")


def _review(period: Period, before: Period, prometheus: str | None, store: str | None) -> Review:
    with ready_database(store) as database, database.read() as connection:
        happened = timeline(chain.written(connection, period.start, period.end))
        this, former = figures(connection, period), figures(connection, before)
        swaps = [of_entry(entry) for entry in chain.newest(connection, _SWAPS, action="head.swapped")]
        owners, verdicts = _owners(connection), VERDICTS_KEPT.by_key(connection)
    asking = Prometheus(prometheus) if prometheus else None
    return Review(
        period=period,
        this=this,
        before=former,
        happened=happened,
        budgets=budgets(asking.values(_BUDGETS, period.end.timestamp())) if asking else None,
        alerts=asking.firing(period) if asking else (),
        swaps=swaps,
        verdicts=verdicts,
        owners=owners,
        counted=_counted(asking, period) if asking else None,
    )


def _counted(asking: Prometheus, period: Period) -> dict[str, float]:
    span, at = f"{period.seconds:.0f}s", period.end.timestamp()
    return {
        what.format_map(labels): value
        for what, query in _COUNTED.items()
        for labels, value in asking.values(query.format(span=span), at)
    }


def _owners(connection: Connection) -> Mapping[str, str]:
    """Return who answers for the rules in use: of the policy that a server took last, else of the store's."""
    taken = [entry for act in ("loaded", "reloaded") for entry in chain.newest(connection, 1, action=f"policy.{act}")]
    if taken:
        details = max(taken, key=lambda entry: entry.seq).details
        after = details.after if details else None
        return dict(after.get("owners", {})) if isinstance(after, Mapping) else {}
    policy = versions.current(connection)
    return parse_policy(policy.text, "the policy in use")[0].owners if policy else {}


def _plain(reviewed: Review) -> dict[str, object]:
    return {
        "from": reviewed.period.start.isoformat(),
        "to": reviewed.period.end.isoformat(),
        "look_at": [asdict(finding) for finding in reviewed.findings],
        "budgets": None if reviewed.budgets is None else [asdict(budget) for budget in reviewed.budgets],
        "this": _figures(reviewed.this),
        "before": _figures(reviewed.before),
        "changes": [asdict(row) for row in reviewed.changes],
        "owners": dict(reviewed.owners),
        "safety": [asdict(row) for row in reviewed.safety],
        "expected": [asdict(expected) for expected in reviewed.expected],
        "capacity": reviewed.capacity,
        "draft_heads": [asdict(row) for row in reviewed.swaps],
        "drills": [asdict(row) for row in reviewed.drills],
    }


def _figures(week: WeekFigures) -> dict[str, object]:
    return {
        "classes": {
            name: {**asdict(traffic), "acceptance_rate": traffic.acceptance_rate, "saved": traffic.saved}
            for name, traffic in week.classes.items()
        },
        "proposers": [
            {"traffic_class": key[0], "proposer": key[1], **asdict(counts), "acceptance_rate": counts.acceptance_rate}
            for key, counts in week.proposers.items()
        ],
        "errors": dict(week.errors),
        "spent": [asdict(spent) for spent in week.spent],
        "verifier": {
            rule: {**asdict(use), "verify_share": use.verify_share, "lost_share": use.lost_share}
            for rule, use in week.verifier.items()
        },
    }
