"""Of acts on one control the newest counts, also where replicas write at the same time."""

import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing

from sqlalchemy import func, insert, select

from prolepsis.control.store.controls import Control, ControlKey, ControlTable, control_key
from prolepsis.control.store.database import Database
from prolepsis.control.store.tables import controls
from tests.control.store.databases import num_waiting_is, opened

KEY = control_key("kill", "everything")


def test_an_older_act_that_waited_for_a_newer_one_does_not_undo_it(postgresql: str) -> None:
    with ExitStack() as stack:
        ours, newer, older = (stack.enter_context(closing(opened(postgresql))) for _ in range(3))
        ControlTable(ours).exchange({KEY: Control("off", 1.0)})
        threads = stack.enter_context(ThreadPoolExecutor(2))
        written: list[Future[Mapping[ControlKey, Control]]] = []
        with ours.write() as connection:
            connection.execute(select(controls).with_for_update())
            for database, control in ((newer, Control("on", 3.0)), (older, Control("off", 2.0))):
                written.append(threads.submit(ControlTable(database).exchange, {KEY: control}))
                assert num_waiting_is(len(written), ours), "it waits for the row"
        for one in written:
            assert one.result(10)[KEY] == Control("on", 3.0)


def test_replicas_that_set_a_new_control_at_once_keep_the_newest(postgresql: str) -> None:
    with ExitStack() as stack:
        ours, newer, older = (stack.enter_context(closing(opened(postgresql))) for _ in range(3))
        threads = stack.enter_context(ThreadPoolExecutor(2))
        written: list[Future[Mapping[ControlKey, Control]]] = []
        with ours.write() as connection:
            row = {"kind": "kill", "name": "everything", "value": "off", "changed_at": 1.0, "author": "", "reason": ""}
            connection.execute(insert(controls), [row])
            for database, control in ((newer, Control("on", 3.0)), (older, Control("off", 2.0))):
                written.append(threads.submit(ControlTable(database).exchange, {KEY: control}))
                assert num_waiting_is(len(written), ours), "it waits for the row"
        for one in written:
            one.result(10)
        assert ControlTable(ours).exchange({})[KEY] == Control("on", 3.0)


def test_one_act_that_the_database_refuses_blocks_no_other(database: Database) -> None:
    table = ControlTable(database)
    acts = {KEY: Control("on", 1.0), "kill rule:a\x00": Control("on", 1.0), "kill rule:\udc80": Control("on", 1.0)}
    assert list(table.put(acts)) == ["kill rule:a\x00", "kill rule:\udc80"]
    assert list(table.read()) == [KEY]


def test_a_reason_is_kept_without_what_no_database_holds(database: Database) -> None:
    table = ControlTable(database)
    assert table.put({KEY: Control("on", 1.0, "\udc80", "a\x00b")}) == {}
    assert table.read() == {KEY: Control("on", 1.0, "\ufffd", "a\ufffdb")}


def test_controls_removed_long_ago_are_deleted(database: Database) -> None:
    table, now = ControlTable(database), time.time()
    for name, at in (("old", now - 91 * 86400.0), ("new", now)):
        table.exchange({control_key("flag", name): Control(None, at)})
    with database.read() as connection:
        assert connection.scalar(select(func.count()).select_from(controls)) == 1
