"""What health learned, in a database: it outlives the server, and each replica reads what another learned."""

from collections.abc import Mapping

import pytest
from pydantic import ValidationError
from sqlalchemy import update
from structlog.testing import capture_logs

from prolepsis.control.health.benefit import Benefits
from prolepsis.control.health.drift import DriftStreams
from prolepsis.control.health.eligibility import DraftFigures, Judged
from prolepsis.control.health.learned import KEEP_EVERY_S, Keeper, Learned
from prolepsis.control.store.database import Database
from prolepsis.control.store.learned import LearnedTable, Place
from prolepsis.control.store.tables import documents as table
from prolepsis.core.errors import StoreUnavailable
from prolepsis.core.stats import AcceptanceState, JudgedDraft, TrafficClassCounts
from tests.control.health.ended import TRAFFIC_CLASS, ended

KEY = ("draft_head", TRAFFIC_CLASS)
FIGURES = {(*KEY, "head@1"): DraftFigures(64, 600.0, 400.0, 1.5, 900.0)}
ACCEPTANCE = {("suffix", "fp"): AcceptanceState((0.5, 60.0, 0.5, 60.0), {3: (0.5, 0.0)})}
HELD = Judged(
    traffic_class=TRAFFIC_CLASS,
    proposers=("draft_head",),
    condition="acceptance_rate",
    min=0.7,
    until=0.6,
    value=0.66,
    eligible=True,
    versions={"draft_head": "head@1"},
)


def streams_of(*versions: str) -> DriftStreams:
    """Return streams that judged a draft of each version, the last one last."""
    in_use = [""]
    streams = DriftStreams(lambda _: in_use[0])
    for in_use[0] in versions:
        streams.judge(KEY, [JudgedDraft(True, 0.9)], 0.0)
    return streams


def everything() -> Learned:
    streams, benefits = DriftStreams(lambda _: "head@1"), Benefits()
    streams.observe([TrafficClassCounts(*KEY)], 0.0)
    for _ in range(300):
        streams.judge(KEY, [JudgedDraft(True, 0.9)], 0.0)
        benefits.see(ended({"draft_head": 5}), 0.0)
    return Learned(streams.states(), benefits.states(), FIGURES, [HELD], ACCEPTANCE)


def test_one_server_reads_what_another_learned(sqlite_database: Database) -> None:
    learned = everything()
    learned.write(LearnedTable(sqlite_database))
    assert Learned.read(LearnedTable(sqlite_database)) == learned


def test_the_version_that_was_used_last_is_read_last(sqlite_database: Database) -> None:
    kept = LearnedTable(sqlite_database)
    for versions in (("b@1",), ("b@1", "c@1"), ("b@1", "c@1", "a@1")):
        Learned(streams_of(*versions).states()).write(kept)
    assert [version for _, version in Learned.read(LearnedTable(sqlite_database)).streams][-1] == "a@1"


def test_conditions_that_are_gone_and_what_is_out_of_use_are_dropped(sqlite_database: Database) -> None:
    kept = LearnedTable(sqlite_database)
    everything().write(kept)
    Learned(figures=FIGURES).write(kept)
    assert Learned.read(LearnedTable(sqlite_database)).conditions == []
    with sqlite_database.write() as connection:
        connection.execute(update(table).values(at=1.0))
    Learned(streams_of("head@2").states()).write(kept)
    assert Learned.read(LearnedTable(sqlite_database)) == Learned(streams_of("head@2").states(), conditions=[])


def test_a_row_of_another_format_is_learned_again(sqlite_database: Database) -> None:
    everything().write(LearnedTable(sqlite_database))
    with sqlite_database.write() as connection:
        connection.execute(update(table).values(value='{"older": true}'))
    with capture_logs() as lines:
        assert Learned.read(LearnedTable(sqlite_database)) == Learned(conditions=[])
    assert [line["event"] for line in lines if line["kind"] == "acceptance"] == ["learned_unreadable"]


class Away(LearnedTable):
    def __init__(self) -> None:
        self.is_away = True
        self.kept: Mapping[Place, str] = {}

    def read(self) -> Mapping[Place, str]:
        if self.is_away:
            raise StoreUnavailable("store: away")
        return self.kept

    def write(self, texts: Mapping[Place, str], *, complete: str | None = None) -> None:
        self.read()
        self.kept = texts


async def test_a_store_that_is_away_at_the_start_is_logged_once_and_so_is_its_return() -> None:
    store, restored, now, newest = Away(), list[Learned](), [0.0], Learned(figures=FIGURES)
    keeper = Keeper(store, restore=restored.append, learned=lambda: newest, clock=lambda: now[0])
    with capture_logs() as lines:
        for _ in range(3):
            await keeper.tick()
        await keeper.close()
        assert [line["event"] for line in lines] == ["store_failed"]
        assert (restored, store.kept) == ([], {}), "what was not read is not overwritten"
        store.is_away = False
        await keeper.tick()
        await keeper.tick()
    assert [(line["event"], line["feature"]) for line in lines] == [
        ("store_failed", "learned"),
        ("store_is_back", "learned"),
    ]
    assert (restored, store.kept) == ([Learned(conditions=[])], {})
    now[0] = KEEP_EVERY_S
    await keeper.tick()
    assert store.kept == newest.texts()


@pytest.mark.parametrize("pool", ["[]", "[0.5]", "[1.5, 2.0]", "[0.5, -1.0]", "[0.5, NaN]", "[0.5, 1e999]", '["a", 1]'])
def test_rates_that_cannot_be_are_not_read(pool: str) -> None:
    with pytest.raises(ValidationError):
        AcceptanceState.from_json(f'{{"pool": {pool}, "buckets": {{}}}}')
