"""What eligibility learned, in a database: another server reads it, and what is gone goes."""

from collections.abc import Iterator
from contextlib import closing

import pytest
from sqlalchemy import insert, update

from prolepsis.policy.eligibility import DraftFigures, Judged
from prolepsis.policy.eligibility_store import EligibilityStore, Learned
from prolepsis.store.database import Database
from prolepsis.store.tables import eligibility
from tests.store.databases import opened

CHAT = "chat-completions/standard/free/short"
FIGURES = {CHAT: {"suffix": DraftFigures("head@1", 64, 600.0, 400.0, 1.5, 900.0)}}
HELD = Judged(
    traffic_class=CHAT,
    proposers=("suffix",),
    condition="acceptance_rate",
    min=0.7,
    until=0.6,
    value=0.66,
    eligible=True,
)


@pytest.fixture
def database(setting: str) -> Iterator[Database]:
    with closing(opened(setting)) as made:
        yield made


def test_one_server_reads_what_another_learned(database: Database) -> None:
    EligibilityStore(database).write(Learned(FIGURES, [HELD]))
    found = EligibilityStore(database).read()
    assert (found.figures, found.held) == (FIGURES, [HELD])


def test_a_condition_that_is_gone_and_old_figures_go(database: Database) -> None:
    store = EligibilityStore(database)
    store.write(Learned(FIGURES, [HELD]))
    store.write(Learned(FIGURES, []))
    assert EligibilityStore(database).read().held == []
    with database.write() as connection:
        connection.execute(update(eligibility).values(kept_at=1.0))
    store.write(Learned({CHAT: {"other": FIGURES[CHAT]["suffix"]}}, []))
    assert EligibilityStore(database).read().figures == {CHAT: {"other": FIGURES[CHAT]["suffix"]}}


def test_a_row_of_another_format_is_learnt_again(database: Database) -> None:
    row = {"traffic_class": CHAT, "name": "suffix", "state": "{}", "kept_at": 1.0}
    with database.write() as connection:
        connection.execute(insert(eligibility), [{"kind": "figures", **row}, {"kind": "held", **row}])
    found = EligibilityStore(database).read()
    assert (found.figures, found.held) == ({}, [])
