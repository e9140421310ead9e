"""Rate limits over several front ends: each leases a part of what is left in the store, and serves from that.

A front end never waits for the store. Where it has no lease yet, it lends itself its share (the limit divided by the
number of front ends) of what the store had left. When the store is lost, the lease continues, and refills at the share
of the limit. So callers of one limit get, within any time, at most what one server would let through, one minute's
allowance more, and one request at each front end.
"""

import asyncio
import time
from collections.abc import Callable, Mapping

import structlog

from prolepsis.control.store.allowances import AllowanceKey, AllowanceTable, Lease, LeaseRequest
from prolepsis.control.web.feature import Feature
from prolepsis.core.token_bucket import PERIOD_S, TokenBucket

EXCHANGE_S = 0.5
EARLY_S = 0.05
"""Least time between two, also where a lease runs out."""
IDLE_S = 2.0
"""A lease from which nothing was taken for so long goes back."""

log = structlog.get_logger(__name__)


class LeasedBucket:
    """The part of one allowance that a front end holds. Times in seconds of one clock."""

    def __init__(self, per_minute: int, share: float, now: float, *, run_out: Callable[[], None]) -> None:
        """`share`: how much of `per_minute` is this front end's. `run_out` is called when little is left."""
        self.per_minute = per_minute
        self.share = share
        self._run_out = run_out
        self._held = 0.0
        """Tokens left of the lease; below 0: more was used, and later leases pay for it."""
        self._is_leased = False
        self._store = TokenBucket(per_minute, per_minute, now)
        """What was left in the store, as last known, and what came since."""
        self._taken_at = now
        self._lost_at: float | None = None
        """When the lease last refilled itself, while the store is lost."""
        self._lent = 0.0
        """Amount that it lent itself since the store was lost."""

    def level(self, now: float) -> float:
        """Return what is left for the caller, here and in the store."""
        self._refill(now)
        is_lost = self._lost_at is not None
        return self._held if is_lost else min(self.per_minute, self._held + self._store.level(now))

    def wait_s(self, amount: float, now: float) -> float:
        """Return the seconds until `amount` is likely here; one over the share waits for all of the share."""
        missing = min(amount, self.share) - self._here(now)
        if missing <= 0:
            return 0.0
        self._run_out()
        if self._lost_at is not None:
            return missing * PERIOD_S / self.share
        return missing * PERIOD_S / self.per_minute + EXCHANGE_S

    def take(self, amount: float, now: float) -> None:
        self._held -= amount
        self._taken_at = now
        if self._here(now) < self.share / 2:
            self._run_out()

    def give(self, amount: float, now: float) -> None:
        self._refill(now)
        self._held += amount

    def reset_s(self, now: float) -> float:
        """Return the seconds until all of the allowance is left again."""
        return (self.per_minute - self.level(now)) * PERIOD_S / self.per_minute

    def is_spare(self, now: float) -> bool:
        """Return whether a new one would be the same."""
        return not self._is_leased and self._held == 0.0 and self.reset_s(now) <= 0.0

    def request(self, now: float, *, closing: bool = False) -> LeaseRequest | None:
        """Return what to exchange with the store, None for nothing; what it returns is gone from here."""
        if self._lost_at is not None:
            return LeaseRequest(self.per_minute, 0.0, self.share - min(self._held, 0.0))
        idle = closing or now - self._taken_at >= IDLE_S
        if self._held >= 0.0 and idle:
            returned, self._held, self._is_leased = self._held, 0.0, False
            return LeaseRequest(self.per_minute, returned, 0.0) if returned else None
        surplus = self._held - self.share
        if surplus > 0.0:
            self._held = self.share
            return LeaseRequest(self.per_minute, surplus, 0.0)
        return LeaseRequest(self.per_minute, 0.0, -surplus) if surplus < 0.0 else None

    def take_over(self, lease: Lease, wanted: float, now: float) -> None:
        if self._lost_at is not None:
            self._held -= min(self._lent, self.share)  # meanwhile the store refilled by a minute's allowance at most
            self._lost_at, self._is_leased = None, False
        self._held += lease.amount
        self._is_leased = self._is_leased or wanted > 0.0
        self._store = TokenBucket(self.per_minute, lease.left, now)

    def lose_store(self, now: float, returned: float = 0.0) -> None:
        """Continue without the store: what is here is all there is, and refills at the share of the limit.

        `returned`: what was on its way to the store. It is used here, and the store may have it as well.
        """
        if self._lost_at is not None:
            return
        self._is_leased = self._is_leased or returned > 0.0
        here = returned + self._here(now)
        self._lent, self._held, self._is_leased, self._lost_at = here - self._held, here, True, now

    def _here(self, now: float) -> float:
        """Return what may be taken here: the lease, or without one this front end's share of what the store had."""
        self._refill(now)
        return self._held + (0.0 if self._is_leased else max(0.0, min(self.share, self._store.level(now))))

    def _refill(self, now: float) -> None:
        if self._lost_at is not None:
            came = max(0.0, now - self._lost_at) * self.share / PERIOD_S
            came = max(0.0, min(came, self.share - self._held))
            self._held += came
            self._lent += came
            self._lost_at = now


class LeasedBuckets(Feature):
    """Makes the buckets of one front end and exchanges their leases. Belongs to one event loop."""

    name = "leased_buckets"
    period_s = EXCHANGE_S

    def __init__(
        self, table: AllowanceTable, num_sharing: Callable[[], int], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`num_sharing`: front ends that share the limits, this one included. `clock`: that of the rate limits."""
        self._table = table
        self._num_sharing = num_sharing
        self._clock = clock
        self._buckets: dict[AllowanceKey, LeasedBucket] = {}
        self._is_lost = False
        self._requests: Mapping[AllowanceKey, LeaseRequest] = {}
        """Requests of the exchange with the store that is running."""
        self._exchanging: asyncio.Task[None] | None = None
        self._exchanged_at = -EARLY_S

    def bucket(self, kind: str, owner: str, per_minute: int, now: float) -> LeasedBucket:
        bucket = self._buckets.get((kind, owner))
        if bucket is None:
            share = per_minute / self._num_sharing()
            bucket = self._buckets[kind, owner] = LeasedBucket(per_minute, share, now, run_out=self._exchange_early)
            if self._is_lost:
                bucket.lose_store(now)
        return bucket

    async def tick(self) -> None:
        now, number = self._clock(), self._num_sharing()
        self._buckets = {key: held for key, held in self._buckets.items() if not held.is_spare(now)}
        for bucket in self._buckets.values():
            bucket.share = bucket.per_minute / number
        # a store that takes longer than until the next tick is lost
        exchanging = self._start()
        done, _ = await asyncio.wait({exchanging}, timeout=EXCHANGE_S)
        if not done:
            self._lose_store()

    async def close(self) -> None:
        """Return what is leased, so that the other front ends have it."""
        if self._exchanging is not None:
            await asyncio.wait({self._exchanging}, timeout=EXCHANGE_S)
        if not self._is_lost:
            await asyncio.wait({self._start(closing=True)}, timeout=2 * EXCHANGE_S)

    def _exchange_early(self) -> None:
        if not self._is_lost and self._clock() - self._exchanged_at >= EARLY_S:
            self._start()

    def _start(self, *, closing: bool = False) -> asyncio.Task[None]:
        if self._exchanging is None or self._exchanging.done():
            self._exchanging = asyncio.get_running_loop().create_task(self._lease(closing=closing))
        return self._exchanging

    async def _lease(self, *, closing: bool) -> None:
        now = self._exchanged_at = self._clock()
        by_key = {key: held.request(now, closing=closing) for key, held in self._buckets.items()}
        requests = {key: request for key, request in by_key.items() if request is not None}
        if not requests:
            return
        self._requests = requests
        try:
            leases = await asyncio.to_thread(self._table.lease, requests)
        except Exception as error:  # contained: what is here continues, and the next tick asks again
            if not self._is_lost:
                log.error("limits_not_shared", error=str(error))
            self._lose_store()
            return
        now = self._clock()
        self._is_lost, self._requests = False, {}
        for key, lease in leases.items():
            if (bucket := self._buckets.get(key)) is not None:
                bucket.take_over(lease, requests[key].wanted, now)

    def _lose_store(self) -> None:
        self._is_lost = True
        for key, bucket in self._buckets.items():
            request = self._requests.get(key)
            bucket.lose_store(self._clock(), request.returned if request is not None else 0.0)
        self._requests = {}
