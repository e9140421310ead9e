"""Reads what the store holds about a period, for snapshots and reviews."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import yaml
from sqlalchemy import Connection, func, select

from prolepsis.control.audit import chain
from prolepsis.control.cost.history import stored_periods
from prolepsis.control.policy import versions
from prolepsis.control.rollout.store import RolloutStore
from prolepsis.control.store.database import Database
from prolepsis.control.store.tables import request_records
from prolepsis.ops.incident.period import Period

MOST_REQUESTS = 50  # slow and failed requests, of each
_VERSIONS = 20
_HOURS = 48


def requests(connection: Connection, period: Period) -> dict[str, object]:
    """Return how requests ended, and those that failed last or took longest."""
    of = request_records.c
    here = (of.ended_at >= period.start.timestamp()) & (of.ended_at < period.end.timestamp())
    ends = select(of.terminal, of.error, of.mode, func.count().label("number")).where(here)
    failed = select(request_records).where(here, of.terminal != "finished").order_by(of.ended_at.desc())
    slow = select(request_records).where(here).order_by(of.total_s.desc())
    return {
        "ends": _rows(connection, ends.group_by(of.terminal, of.error, of.mode)),
        "failed": _rows(connection, failed.limit(MOST_REQUESTS)),
        "slow": _rows(connection, slow.limit(MOST_REQUESTS)),
    }


def started(connection: Connection) -> dict[str, object] | None:
    """Return the last start of a server: its versions and its configuration."""
    newest = chain.newest(connection, 1, action="server.started")
    if not newest:
        return None
    details = newest[0].details
    return {"at": newest[0].at, "versions": dict(newest[0].versions), "configuration": details and details.after}


def policies(connection: Connection) -> dict[str, object]:
    """Return the policy in use as its parser sees it, without comments, and the newest versions."""
    current = versions.current(connection)
    return {
        "in_use": current and {**asdict(current), "text": yaml.safe_load(current.text)},
        "versions": [asdict(version) for version in versions.history(connection, _VERSIONS)],
    }


def rollouts(database: Database) -> list[dict[str, Any]]:
    """Return every rollout with its events."""
    store = RolloutStore(database)
    return [
        {"state": json.loads(state.to_json()), "events": [json.loads(event.to_json()) for event in store.events(name)]}
        for name, state in store.states().items()
    ]


def cost(connection: Connection) -> list[dict[str, Any]]:
    """Return what the device cost in the last hours."""
    return [asdict(period) for period in stored_periods(connection, _HOURS)]


def _rows(connection: Connection, query: Any) -> list[Mapping[str, object]]:
    return [dict(row) for row in connection.execute(query).mappings()]
