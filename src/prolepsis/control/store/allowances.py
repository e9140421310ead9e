"""Rate limits that replicas share: what is left of each in the store, which they lease in parts."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, delete, select, tuple_

from prolepsis.control.store.database import Database, database_time, insert_or_update
from prolepsis.control.store.tables import allowances
from prolepsis.core.token_bucket import PERIOD_S, TokenBucket

AllowanceKey = tuple[str, str]
"""Kind (requests, tokens), and whose it is."""


@dataclass(frozen=True, slots=True)
class LeaseRequest:
    per_minute: float
    returned: float
    """Unused part of an earlier lease."""
    wanted: float


@dataclass(frozen=True, slots=True)
class Lease:
    amount: float
    """Taken out of the allowance for this replica; one that is lost with its replica is not given to another."""
    left: float
    """For all replicas."""


class AllowanceTable:
    """Each call waits for the database and may raise `StoreUnavailable`; none belongs on an event loop."""

    def __init__(self, database: Database, *, now: Callable[[Connection], float] = database_time) -> None:
        self._database = database
        self._now = now

    def lease(self, requests: Mapping[AllowanceKey, LeaseRequest]) -> Mapping[AllowanceKey, Lease]:
        """Take for each request what it wants, or what is left, all in one transaction."""
        with self._database.write() as connection:
            now = self._now(connection)
            buckets = _hold(connection, requests, now)
            leases = {key: _leased(buckets[key], request, now) for key, request in requests.items()}
            _put(connection, buckets)
            _forget_full(connection, now)
        return leases


def _leased(bucket: TokenBucket, request: LeaseRequest, now: float) -> Lease:
    bucket.per_minute = request.per_minute
    bucket.give(request.returned, now)
    amount = max(0.0, min(request.wanted, bucket.level(now)))
    bucket.take(amount, now)
    return Lease(amount, bucket.held)


def _hold(
    connection: Connection, requests: Mapping[AllowanceKey, LeaseRequest], now: float
) -> dict[AllowanceKey, TokenBucket]:
    """Return the allowances, locked in one order until the transaction ends; one without a row is full."""
    of = allowances.c
    full = [
        {"kind": kind, "owner": owner, "per_minute": one.per_minute, "level": one.per_minute, "filled_at": now}
        for (kind, owner), one in sorted(requests.items())
    ]
    connection.execute(insert_or_update(connection, allowances).on_conflict_do_nothing(), full)
    query = select(allowances).where(tuple_(of.kind, of.owner).in_(list(requests)))
    rows = connection.execute(query.order_by(of.kind, of.owner).with_for_update()).all()
    return {(row.kind, row.owner): TokenBucket(row.per_minute, row.level, row.filled_at) for row in rows}


def _put(connection: Connection, buckets: Mapping[AllowanceKey, TokenBucket]) -> None:
    put = insert_or_update(connection, allowances)
    new = {name: put.excluded[name] for name in ("per_minute", "level", "filled_at")}
    put = put.on_conflict_do_update(index_elements=[allowances.c.kind, allowances.c.owner], set_=new)
    rows = [
        {"kind": kind, "owner": owner, "per_minute": one.per_minute, "level": one.held, "filled_at": one.filled_at}
        for (kind, owner), one in sorted(buckets.items())
    ]
    connection.execute(put, rows)


def _forget_full(connection: Connection, now: float) -> None:
    """Delete rows that say the same as a missing one, except rows that another replica holds."""
    of = allowances.c
    is_full = of.level + (now - of.filled_at) * of.per_minute / PERIOD_S >= of.per_minute
    full = select(of.kind, of.owner).where(is_full, of.filled_at < now - PERIOD_S).with_for_update(skip_locked=True)
    connection.execute(delete(allowances).where(tuple_(of.kind, of.owner).in_(full)))
