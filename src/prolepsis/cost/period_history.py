"""The history of what the device cost, in the store."""

from collections.abc import Sequence
from dataclasses import asdict, fields

from sqlalchemy import Connection, insert, select

from prolepsis.cost.device_time import DeviceCost
from prolepsis.store.tables import cost_periods


def put(connection: Connection, replica: str, periods: Sequence[DeviceCost]) -> None:
    """Store periods of a server; those that are stored already stay as they are."""
    mine = select(cost_periods.c.started_at).where(cost_periods.c.replica == replica)
    known = set(connection.scalars(mine))
    rows = [{"replica": replica, **asdict(one)} for one in periods if one.started_at not in known]
    if rows:
        connection.execute(insert(cost_periods), rows)


def newest(connection: Connection, limit: int) -> list[DeviceCost]:
    """Return the periods of all servers that ended last, the newest first."""
    columns = [cost_periods.c[field.name] for field in fields(DeviceCost)]
    query = select(*columns).order_by(cost_periods.c.ended_at.desc()).limit(limit)
    return [DeviceCost(**row) for row in connection.execute(query).mappings()]
