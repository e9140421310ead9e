"""Baselines in a database: they outlive the server, and each replica reads what another learned."""

from collections.abc import Iterator
from contextlib import closing

import pytest
from sqlalchemy import update

from prolepsis.core.stats import JudgedDraft, TrafficClassCounts
from prolepsis.safety.baselines import Baselines, BaselineStore
from prolepsis.safety.benefit import Benefits
from prolepsis.safety.drift import DriftStreams
from prolepsis.store.database import Database
from prolepsis.store.tables import drift_baselines
from tests.safety.ended import TRAFFIC_CLASS, ended
from tests.store.databases import opened

KEY = ("draft_head", TRAFFIC_CLASS)


@pytest.fixture
def database(setting: str) -> Iterator[Database]:
    with closing(opened(setting)) as made:
        yield made


def learned() -> tuple[DriftStreams, Benefits]:
    streams, benefits = DriftStreams(), Benefits()
    streams.observe([TrafficClassCounts(*KEY)], lambda _: "head@1", 0.0)
    for _ in range(300):
        streams.see(KEY, "head@1", [JudgedDraft(True, 0.9)], 0.0)
        benefits.see(ended({"draft_head": 5}), 0.0)
    return streams, benefits


def test_one_server_reads_what_another_learned(database: Database) -> None:
    streams, benefits = learned()
    store = BaselineStore(database)
    store.write(Baselines(streams.states(), benefits.states()))
    read = BaselineStore(database).read()
    assert dict(read.streams) == dict(streams.states())
    assert dict(read.benefits) == dict(benefits.states())
    streams.see(KEY, "head@2", [JudgedDraft(True, 0.9)], 0.0)
    store.write(Baselines(streams.states(), benefits.states()))
    assert {version for _, version in BaselineStore(database).read().streams} == {"head@1", "head@2"}


def test_the_version_that_was_used_last_is_read_last(database: Database) -> None:
    store, streams = BaselineStore(database), DriftStreams()
    for version in ("b@1", "c@1", "a@1"):
        streams.see(KEY, version, [JudgedDraft(True, 0.9)], 0.0)
        store.write(Baselines(streams.states(), {}))
    assert [version for _, version in BaselineStore(database).read().streams][-1] == "a@1"


def test_a_version_that_is_out_of_use_is_dropped_though_servers_start_again(database: Database) -> None:
    streams, benefits = learned()
    BaselineStore(database).write(Baselines(streams.states(), benefits.states()))
    with database.write() as connection:
        connection.execute(update(drift_baselines).values(kept_at=1.0))
    again, later = BaselineStore(database), DriftStreams()
    later.restore(again.read().streams, 0.0)
    later.see(KEY, "head@2", [JudgedDraft(True, 0.9)], 0.0)
    again.write(Baselines(later.states(), {}))
    assert {version for _, version in BaselineStore(database).read().streams} == {"head@2"}


def test_a_row_of_another_format_is_learnt_again(database: Database) -> None:
    streams, benefits = learned()
    BaselineStore(database).write(Baselines(streams.states(), benefits.states()))
    with database.write() as connection:
        connection.execute(update(drift_baselines).values(state='{"older": true}'))
    assert BaselineStore(database).read() == Baselines({}, {})
