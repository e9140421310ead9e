"""Rollouts in a database: replicas share states and evidence, and continue where it is gone."""

import math
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from prolepsis.control.rollout.machine import step
from prolepsis.control.rollout.store import RolloutStore
from prolepsis.control.rollout.units import MAX_COUNTED, UnitKey
from prolepsis.control.store.database import Database
from prolepsis.control.store.migrate import migrated_in_memory
from prolepsis.core.errors import StoreUnavailable
from tests.control.rollout.rollout import NEW, SETTINGS, by_hand, counts
from tests.control.rollout.test_runtime import Server
from tests.control.store.databases import cut_off, opened, sqlite_setting
from tests.waiting import at_once

Connect = Callable[[], RolloutStore]


@pytest.fixture
def replica(setting: str) -> Iterator[Connect]:
    """Each call is the store as another replica sees it."""
    made: list[Database] = []

    def another() -> RolloutStore:
        made.append(opened(setting))
        return RolloutStore(made[-1])

    yield another
    for database in made:
        database.close()


def test_a_state_is_kept_with_its_events_only_over_the_one_before_it(replica: Connect) -> None:
    ours, theirs = replica(), replica()
    started = by_hand(NEW, "start", 0.0)
    promoted, events = step(started, counts(0, 0.0), 20.0, SETTINGS)
    promoted = replace(promoted, references={"errors": 0.5})
    assert ours.swap(started, ())
    assert theirs.states() == {"r1": started}
    assert theirs.swap(promoted, events)
    assert not ours.swap(promoted, events)
    assert not ours.swap(by_hand(started, "rollback", 20.0), events)
    assert ours.states() == ours.states() == {"r1": promoted}
    assert list(ours.events("r1")) == list(events)
    assert list(ours.events("r2")) == []


def test_one_of_several_simultaneous_writers_wins(replica: Connect) -> None:
    started = by_hand(NEW, "start", 0.0)
    assert replica().swap(started, ())
    kept = []

    def write(store: RolloutStore, number: int) -> None:
        if store.swap(replace(by_hand(started, "hold", 1.0), references={"by": float(number)}), ()):
            kept.append(float(number))

    at_once(*(partial(write, replica(), number) for number in range(4)))
    [winner] = kept
    assert replica().states()["r1"].references == {"by": winner}


def test_evidence_of_the_dead_counts_until_their_stage_is_over(replica: Connect) -> None:
    ours, dead = replica(), replica()
    started = by_hand(NEW, "start", 0.0)
    ours.swap(started, ())
    other = replace(counts(0, 0.0), rollout_id="r2")
    dead.keep_evidence([counts(0, 0.0, num_canary=7), other])
    dead.keep_evidence([counts(0, 0.0, num_canary=9)])
    ours.keep_evidence([counts(0, 0.0)])
    del dead
    assert list(ours.other_evidence()) == [counts(0, 0.0, num_canary=9), other]
    again = replica()
    assert {one.num_canary for one in again.other_evidence() if one.rollout_id == "r1"} == {9, 1000}
    held = by_hand(started, "hold", 1.0)
    ours.swap(held, ())
    assert len(again.other_evidence()) == 3
    ours.swap(by_hand(held, "promote", 2.0), ())
    assert list(again.other_evidence()) == [other]


def test_a_database_that_fails_says_so(tmp_path: Path) -> None:
    with closing(opened(sqlite_setting(tmp_path))) as database:
        store, started = RolloutStore(database), by_hand(NEW, "start", 0.0)
        for call in (
            store.states,
            store.other_evidence,
            lambda: store.swap(started, ()),
            lambda: store.events("r1"),
            lambda: store.keep_evidence([counts(0, 0.0)]),
        ):
            with pytest.raises(StoreUnavailable, match=r"store sqlite.*unable to open"):
                call()


async def test_two_replicas_decide_on_what_both_saw(tmp_path: Path, connect: Callable[[], Database]) -> None:
    one, other = Server(tmp_path, database=connect()), Server(tmp_path, database=connect())
    try:
        await one.go_on()
        for _ in range(60):
            if one.state.phase == "on":
                break
            for server in (one, other):
                await server.ask(8)
                await server.go_on()
        assert [kind for kind, _ in one.changes] == ["started", "promoted", "promoted", "completed"]
        assert other.changes == one.changes
        await other.go_on()
        other.arms.clear()
        while set(other.arms) != {("canary", "on"), ("holdout", "off")}:  # by chance each request is one of control
            assert other.num_asked < 2000
            assert set(other.arms) <= {("canary", "on"), ("holdout", "off")}
            await other.ask(30)
        decided = [event for event in one.store.events(one.state.rollout_id) if event.judgement is not None]
        assert all(event.judgement and event.judgement.guardrails for event in decided)
    finally:
        await one.close()
        await other.close()


async def test_harm_that_one_replica_saw_takes_back_what_all_serve(
    tmp_path: Path, connect: Callable[[], Database]
) -> None:
    one, other = Server(tmp_path, database=connect()), Server(tmp_path, database=connect())
    try:
        await one.go_on()
        await one.until("running", 1)
        await other.go_on()
        one.damaged = True
        await one.until("rolled_back", 1)
        await other.go_on()
        other.arms.clear()
        await other.ask(30)
        assert {mode for _, mode in other.arms} == {"off"}
        assert await other.stopped() == {f"{one.state.rollout_id}#1"}
    finally:
        await one.close()
        await other.close()


async def test_a_replica_that_was_killed_leaves_its_evidence_to_the_next(tmp_path: Path, postgresql: str) -> None:
    with closing(opened(postgresql)) as database:
        killed = Server(tmp_path, database=database)
        await killed.go_on()
        await killed.until("running", 1)
        state = killed.state
        await killed.ask(16)
        killed.now += 10.0
        await killed.rollouts._refresh()  # kept, and killed before anything is decided
        again = Server(tmp_path, database=database, now=killed.now)
        await again.rollouts._refresh()
        before, after = [await server.rollouts.view(state.rollout_id) for server in (killed, again)]
        assert after.num_canary + after.num_control == before.num_canary + before.num_control > 0
        assert again.state == state
        await killed.close()
        await again.close()


async def test_a_database_that_is_gone_in_mid_rollout_keeps_nothing_from_being_rolled_back(
    tmp_path: Path, postgresql: str
) -> None:
    with closing(opened(postgresql)) as database:
        server = Server(tmp_path, database=database)
        await server.go_on()
        await server.until("running", 1)
        rollout_id = server.state.rollout_id
        with cut_off(postgresql):
            server.arms.clear()
            for _ in range(6):
                await server.ask(16)
                await server.go_on()
            assert {("canary", "on"), ("unassigned", "off")} <= set(server.arms)
            view = await server.rollouts.view(rollout_id)
            assert (view.phase, view.stage_number) == ("running", 1), "what cannot be kept does not happen"
            server.damaged = True
            while (await server.rollouts.view(rollout_id)).phase != "rolled_back":
                assert server.num_asked < 1500
                await server.ask(16)
                await server.go_on()
            assert await server.stopped() == {f"{rollout_id}#1"}
            # a server that starts now serves everything plainly, and starts nothing
            again = Server(tmp_path, database=database, now=server.now)
            await again.go_on()
            await again.ask(16)
            assert {mode for _, mode in again.arms} == {"off"}
        assert server.state.phase == "running"
        await server.go_on()
        assert server.changes[-1] == ("rolled_back", "canary 30%")
        await again.go_on()
        assert (await again.rollouts.view(rollout_id)).phase == "rolled_back"
        await server.close()
        await again.close()


def test_units_in_memory_are_bounded_and_the_oldest_go() -> None:
    """Without a store a stage that never ends would count units until the memory is full."""
    with closing(migrated_in_memory()) as database:
        store = RolloutStore(database)
        for number in range(3):
            keys = [UnitKey("r1", 1, 0, f"{number} {i}", late=False) for i in range(MAX_COUNTED // 2)]
            assert store.claim(keys, -math.inf, float(number)) == frozenset(keys)
        assert store.claim(keys[:9], -math.inf, 3.0) == frozenset()
        forgotten = [UnitKey("r1", 1, 0, f"0 {i}", late=False) for i in range(9)]
        assert store.claim(forgotten, -math.inf, 4.0) == frozenset(forgotten)
