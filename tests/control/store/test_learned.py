"""What was learned: replicas that write one row at the same time, and rows that are old."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

from sqlalchemy import insert

from prolepsis.control.store.database import Database
from prolepsis.control.store.learned import LearnedTable, Place
from prolepsis.control.store.tables import learned
from prolepsis.core.config import DAY_S
from tests.control.store.databases import num_waiting_is, opened

CHAT: Place = ("figures", "suffix", "chat", "1")
CODE: Place = ("figures", "suffix", "code", "1")
HELD: Place = ("held", "", "chat", "a digest")


def test_a_row_that_another_replica_inserts_meanwhile_is_replaced(postgresql: str) -> None:
    with ExitStack() as stack:
        ours, other = (stack.enter_context(closing(opened(postgresql))) for _ in range(2))
        threads = stack.enter_context(ThreadPoolExecutor(1))
        with ours.write() as connection:
            key = dict(zip(("kind", "proposer", "traffic_class", "version"), CHAT, strict=True))
            connection.execute(insert(learned), [{**key, "state": "1", "kept_at": 1e10}])
            written = threads.submit(LearnedTable(other).write, {CHAT: "2", CODE: "3"})
            assert num_waiting_is(1, ours), "it waits for the row"
        written.result(10)
        assert LearnedTable(ours).read() == {CHAT: "2", CODE: "3"}


def test_replicas_that_write_in_turn_replace_each_others_rows_only(database: Database) -> None:
    first, second = LearnedTable(database), LearnedTable(database)
    first.write({CHAT: "1", CODE: "1"})
    second.write({CHAT: "2"})
    first.write({CHAT: "1", CODE: "3"})
    assert LearnedTable(database).read() == {CHAT: "2", CODE: "3"}, "unchanged texts are not written again"


def test_what_does_not_change_is_forgotten_but_not_what_a_replica_holds_complete(database: Database) -> None:
    days = [0]
    ours, other = (LearnedTable(database, lambda: DAY_S * days[0]) for _ in range(2))
    ours.write({CHAT: "1", HELD: "1"}, complete="held")
    for days[0] in range(0, 200, 10):
        if days[0] == 50:  # a restart
            ours = LearnedTable(database, lambda: DAY_S * days[0])
            ours.read()
        ours.write({CHAT: "1", HELD: "1"}, complete="held")
        other.write({CODE: str(days[0])}, complete="held")
    assert LearnedTable(database).read() == {HELD: "1", CODE: "190"}
