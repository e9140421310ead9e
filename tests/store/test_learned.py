"""What features learned: replicas that write one row at the same time, and a store that is away."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

from sqlalchemy import insert
from structlog.testing import capture_logs

from prolepsis.core.config import DAY_S
from prolepsis.core.errors import StoreUnavailable
from prolepsis.store.database import Database
from prolepsis.store.learned import KEEP_EVERY_S, Keeper, LearnedTable, Place
from prolepsis.store.tables import eligibility
from tests.store.databases import num_waiting_is, opened

CHAT: Place = ("figures", "chat", "suffix")
CODE: Place = ("figures", "code", "suffix")
HELD: Place = ("held", "chat", "a digest")


def test_a_row_that_another_replica_inserts_meanwhile_is_replaced(postgresql: str) -> None:
    with ExitStack() as stack:
        ours, other = (stack.enter_context(closing(opened(postgresql))) for _ in range(2))
        threads = stack.enter_context(ThreadPoolExecutor(1))
        with ours.write() as connection:
            row = {"kind": CHAT[0], "traffic_class": CHAT[1], "name": CHAT[2], "state": "1", "kept_at": 1e10}
            connection.execute(insert(eligibility), [row])
            written = threads.submit(LearnedTable(other, eligibility).write, {CHAT: "2", CODE: "3"})
            assert num_waiting_is(1, ours), "it waits for the row"
        written.result(10)
        assert LearnedTable(ours, eligibility).read() == {CHAT: "2", CODE: "3"}


def test_replicas_that_write_in_turn_replace_each_others_rows_only(database: Database) -> None:
    first, second = LearnedTable(database, eligibility), LearnedTable(database, eligibility)
    first.write({CHAT: "1", CODE: "1"})
    second.write({CHAT: "2"})
    first.write({CHAT: "1", CODE: "3"})
    assert LearnedTable(database, eligibility).read() == {CHAT: "2", CODE: "3"}, "unchanged texts are not written again"


def test_what_does_not_change_is_forgotten_but_not_what_a_replica_holds_complete(database: Database) -> None:
    days = [0]
    ours, other = (LearnedTable(database, eligibility, lambda: DAY_S * days[0]) for _ in range(2))
    ours.write({CHAT: "1", HELD: "1"}, complete="held")
    for days[0] in range(0, 200, 10):
        if days[0] == 50:  # a restart
            ours = LearnedTable(database, eligibility, lambda: DAY_S * days[0])
            ours.read()
        ours.write({CHAT: "1", HELD: "1"}, complete="held")
        other.write({CODE: str(days[0])}, complete="held")
    assert LearnedTable(database, eligibility).read() == {HELD: "1", CODE: "190"}


class Away:
    """A store of one number, which may be away."""

    def __init__(self) -> None:
        self.is_away = True
        self.kept = 7

    def read(self) -> int:
        self._reach()
        return self.kept

    def write(self, learned: int, /) -> None:
        self._reach()
        self.kept = learned

    def _reach(self) -> None:
        if self.is_away:
            raise StoreUnavailable("store: away")


async def test_a_store_that_is_away_at_the_start_is_logged_once_and_so_is_its_return() -> None:
    store, restored, now = Away(), list[int](), [0.0]
    keeper = Keeper("drift", store, restore=restored.append, learned=lambda: 8, clock=lambda: now[0])
    with capture_logs() as lines:
        for _ in range(3):
            await keeper.tick()
        await keeper.close()
        assert [line["event"] for line in lines] == ["store_failed"]
        assert (restored, store.kept) == ([], 7), "what was not read is not overwritten"
        store.is_away = False
        await keeper.tick()
        await keeper.tick()
    assert [(line["event"], line["feature"]) for line in lines] == [
        ("store_failed", "drift"),
        ("store_is_back", "drift"),
    ]
    assert (restored, store.kept) == ([7], 7)
    now[0] = KEEP_EVERY_S
    await keeper.tick()
    assert store.kept == 8
