"""Rate limits that replicas share: what is left of each in the store, which they lease in parts."""

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import select

from prolepsis.control.store import documents as of
from prolepsis.control.store.database import StoreTable
from prolepsis.control.store.documents import Documents, StoredDocument
from prolepsis.core.token_bucket import PERIOD_S, TokenBucket

AllowanceKey = tuple[str, str]  # kind (requests, tokens), and whose it is
ALLOWANCES = Documents.of("allowance", TokenBucket)
"""By `allowance_name`; `at`: when it is full again if nothing more is taken. One without a document is full."""


@dataclass(frozen=True, slots=True)
class LeaseRequest:
    per_minute: float
    returned: float  # unused part of an earlier lease
    wanted: float


@dataclass(frozen=True, slots=True)
class Lease:
    amount: float
    """Taken out of the allowance for this replica; one that is lost with its replica is not given to another."""
    left: float  # for all replicas


class AllowanceTable(StoreTable):
    def lease(self, requests: Mapping[AllowanceKey, LeaseRequest]) -> Mapping[AllowanceKey, Lease]:
        """Take for each request what it wants, or what is left, all in one transaction."""
        by_name = {allowance_name(*key): request for key, request in requests.items()}
        while True:
            with self._database.write() as connection:
                now = self._now(connection)
                held = ALLOWANCES.list(connection, of.key.in_([*by_name]), hold=True)  # in one order, until the end
                if len(held) == len(by_name):
                    leases = {entry.key: _leased(entry.value, by_name[entry.key], now) for entry in held}
                    left = [StoredDocument(entry.key, entry.value, now + entry.value.reset_s(now)) for entry in held]
                    ALLOWANCES.put(connection, left)
                    free = select(of.key).where(ALLOWANCES.are(of.at < now - PERIOD_S))  # but those that others hold
                    ALLOWANCES.remove(connection, of.key.in_(free.with_for_update(skip_locked=True)))
                    return {key: leases[allowance_name(*key)] for key in requests}
            with self._database.write() as connection:  # one of its own: who waits for new rows holds no others
                rates = ((name, by_name[name].per_minute) for name in by_name.keys() - {entry.key for entry in held})
                full = [StoredDocument(name, TokenBucket(rate, rate, now), now) for name, rate in rates]
                ALLOWANCES.add(connection, full)


def allowance_name(kind: str, owner: str) -> str:
    return f"{kind} {owner}"


def _leased(bucket: TokenBucket, request: LeaseRequest, now: float) -> Lease:
    bucket.per_minute = request.per_minute
    bucket.give(request.returned, now)
    amount = max(0.0, min(request.wanted, bucket.level(now)))
    bucket.take(amount, now)
    return Lease(amount, bucket.held)
