"""One limit over several front doors: together they let through what one would, and no more than a stated bound."""

import random
from collections.abc import Mapping

import pytest
from sqlalchemy import Connection

from prolepsis.control.store.allowances import AllowanceKey, AllowanceTable, Lease, LeaseRequest
from prolepsis.control.store.database import Database
from prolepsis.control.store.migrate import migrated_in_memory
from prolepsis.core.errors import StoreUnavailable
from prolepsis.core.token_bucket import TokenBucket
from prolepsis.server.admission.leased_buckets import EXCHANGE_S, IDLE_S, LeasedBucket, LeasedBuckets

LIMIT = 60
OWNER = "tenant:acme"


class Store(AllowanceTable):
    """A store on the clock of the front doors, which may be away."""

    def __init__(self, database: Database) -> None:
        self.time = 0.0
        self.is_away = False
        super().__init__(database, now=self._at)

    def _at(self, _: Connection) -> float:
        return self.time

    def lease(self, requests: Mapping[AllowanceKey, LeaseRequest]) -> Mapping[AllowanceKey, Lease]:
        if self.is_away:
            raise StoreUnavailable("it is away")
        return super().lease(requests)


class MemoryStore(Store):
    """Does without statements, which take most of a long run."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._buckets: dict[AllowanceKey, TokenBucket] = {}

    def lease(self, requests: Mapping[AllowanceKey, LeaseRequest]) -> Mapping[AllowanceKey, Lease]:
        if self.is_away:
            raise StoreUnavailable("it is away")
        leases = {}
        for key, request in requests.items():
            bucket = self._buckets.setdefault(key, TokenBucket(request.per_minute, request.per_minute, self.time))
            bucket.give(request.returned, self.time)
            amount = max(0.0, min(request.wanted, bucket.level(self.time)))
            bucket.take(amount, self.time)
            leases[key] = Lease(amount, bucket.held)
        return leases


class Doors:
    """Front doors of one store, all asked by one owner."""

    def __init__(self, number: int, kind: type[Store] = Store) -> None:
        self.store = kind(migrated_in_memory())
        self.all = [LeasedBuckets(self.store, lambda: number, clock=lambda: self.store.time) for _ in range(number)]

    async def tick(self) -> None:
        for door in self.all:
            await door.tick()

    async def run(self, seconds: float) -> None:
        for _ in range(round(seconds / EXCHANGE_S)):
            self.store.time += EXCHANGE_S
            await self.tick()

    def bucket(self, door: int) -> LeasedBucket:
        return self.all[door].bucket("requests", OWNER, LIMIT, self.store.time)

    def ask(self, door: int, most: int = 10**6) -> int:
        """Ask for one request after the other until one is refused; return how many were let in."""
        bucket, now = self.bucket(door), self.store.time
        for number in range(most):
            if bucket.wait_s(1.0, now) > 0:
                return number
            bucket.take(1.0, now)
        return most

    async def ask_all(self, door: int) -> int:
        """Ask at one front door until its exchanges bring no more."""
        total = 0
        while (let_in := self.ask(door)) > 0:
            total += let_in
            await self.tick()
        return total


async def test_one_front_door_gets_all_of_the_limit_and_leaves_none_to_the_others() -> None:
    doors = Doors(3)
    assert await doors.ask_all(0) == LIMIT
    await doors.run(1.0)
    assert doors.ask(0) == 1
    await doors.run(60.0 + IDLE_S)
    assert await doors.ask_all(1) == LIMIT


async def test_unused_allowance_of_one_front_door_goes_to_others() -> None:
    doors = Doors(3)
    assert doors.ask(0, most=1) == 1
    await doors.tick()
    assert doors.store.lease({("requests", OWNER): LeaseRequest(LIMIT, 0.0, 0.0)})["requests", OWNER].left == 39.0
    await doors.run(IDLE_S)
    assert await doors.ask_all(1) == LIMIT


async def test_unused_reservations_are_returned() -> None:
    doors = Doors(2)
    bucket = doors.bucket(0)
    bucket.take(50.0, 0.0)
    await doors.tick()
    assert bucket.level(0.0) == 10.0
    bucket.give(45.0, 0.0)
    await doors.tick()
    assert bucket.level(0.0) == 55.0
    assert await doors.ask_all(1) == 30, "beside the lease of the other"


async def test_a_refusal_says_when_to_come_back_and_that_is_true() -> None:
    doors = Doors(2)
    await doors.ask_all(0)
    wait_s = doors.bucket(0).wait_s(1.0, doors.store.time)
    assert wait_s == 1.0 + EXCHANGE_S
    await doors.run(wait_s)
    assert doors.ask(0, most=1) == 1


async def test_without_the_store_each_goes_on_with_its_lease_then_at_its_share() -> None:
    doors = Doors(3)
    for door in range(3):
        doors.bucket(door).take(5.0, 0.0)
    await doors.tick()
    doors.store.is_away = True
    await doors.tick()
    leased = [doors.ask(door) for door in range(3)]
    assert leased == [20, 20, 5], "what the store had when each asked"
    await doors.run(61.0)
    assert [doors.ask(door) for door in range(3)] == [20, 20, 20]
    assert doors.bucket(0).wait_s(1.0, doors.store.time) == pytest.approx(3.0)
    doors.store.is_away = False
    await doors.run(60.0 + IDLE_S)
    assert await doors.ask_all(0) == LIMIT


async def test_a_lease_that_was_to_go_back_when_the_store_was_lost_is_still_used() -> None:
    doors = Doors(2)
    for door in range(2):
        doors.bucket(door).take(1.0, 0.0)
    await doors.tick()
    doors.store.is_away = True
    doors.store.time += IDLE_S
    await doors.tick()
    assert [doors.ask(door) for door in range(2)] == [30, 28]
    doors.store.is_away = False
    await doors.tick()
    assert doors.ask(0) <= 2, "it is not used twice"


async def test_a_front_door_that_closes_returns_its_lease() -> None:
    doors = Doors(2)
    doors.bucket(0).take(1.0, 0.0)
    await doors.tick()
    await doors.all[0].close()
    assert doors.store.lease({("requests", OWNER): LeaseRequest(LIMIT, 0.0, 0.0)})["requests", OWNER].left == 59.0


async def test_full_buckets_are_forgotten() -> None:
    doors = Doors(2)
    doors.ask(0, most=3)
    before = doors.bucket(0)
    await doors.run(10.0)
    assert doors.bucket(0) is not before


@pytest.mark.parametrize(("seed", "kind"), [(0, Store), *((seed, MemoryStore) for seed in range(8))])
async def test_no_span_of_time_has_more_than_the_stated_bound(seed: int, kind: type[Store]) -> None:
    """Callers ask at all front doors for whatever they get, while the store comes and goes."""
    drawn, doors = random.Random(seed), Doors(3, kind)
    let_in = [(0.0, 0)]
    for _ in range(300):
        doors.store.time += drawn.choice((0.05, 0.5, 3.0, 20.0 if drawn.random() < 0.05 else 0.5))
        if drawn.random() < 0.05:
            doors.store.is_away = not doors.store.is_away
        for door in range(3):
            if drawn.random() < 0.7:
                let_in.append((doors.store.time, doors.ask(door, drawn.choice((1, 5, 100)))))
            if drawn.random() < 0.8:
                await doors.all[door].tick()
    worst = 0.0
    for first, (start, _) in enumerate(let_in):
        total = 0
        for at, number in let_in[first:]:
            total += number
            worst = max(worst, total - LIMIT * (at - start) / 60.0)
    assert worst <= 2 * LIMIT + 3
