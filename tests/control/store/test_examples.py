"""Examples in the store: written once, sealed, read in order, bounded, and gone when they are forgotten."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import select, update

from prolepsis.control.store.database import Database, store_url
from prolepsis.control.store.examples import ExampleBounds, ExampleItem, ExampleTable, example_id
from prolepsis.control.store.lineage import forget
from prolepsis.control.store.sealed import sealed, unsealed
from prolepsis.control.store.signing import OPTION, AuditKeys
from prolepsis.control.store.tables import documents
from prolepsis.control.store.writer import Writer
from prolepsis.core.config import DAY_S
from prolepsis.core.learning import Example
from tests.control.store.databases import num_waiting_is, opened
from tests.control.store.learnt import CHAT, CODE, EXAMPLE, example, manifest, nothing, put

NOW = 1000.0 * DAY_S


def numbers_of(table: ExampleTable, rule: str = "code") -> list[int]:
    return [each.prompt[0] for each in table.read(rule)]


def bounds(num_bytes: int = 10**9, *, days: float = 30.0, tenants: str = "acme bank") -> dict[str, ExampleBounds]:
    return {"code": ExampleBounds(days, num_bytes, frozenset(tenants.split()))}


def test_examples_are_read_oldest_first_by_rule_tenant_and_time(database: Database) -> None:
    put(database, *(example(number, at=1000.0 - number) for number in range(450)))
    put(database, example(507, at=5000.0, tenant="bank"), example(8, rule="code2"), example(509, tenant=""))
    table = ExampleTable(database)
    found = list(table.read("code"))
    assert [each.at for each in found] == sorted(each.at for each in found)
    assert len(found) == 452
    assert found[-1] == example(507, at=5000.0, tenant="bank")
    assert [each.prompt[0] for each in table.read("code", tenants=["acme"], most_tokens=14)] == [1, 0]
    assert [each.tenant for each in table.read("code", tenants=["bank", ""])] == ["", "bank"]
    assert list(table.read("cod")) == list(table.read("code", tenants=[])) == []


def test_an_example_is_written_once_and_told(database: Database) -> None:
    told, made = list[str](), list[int]()

    def make() -> Example | None:
        made.append(1)
        return EXAMPLE

    items = [ExampleItem(make, "acme", 1.0, told.append), ExampleItem(lambda: None, "acme", 1.0, told.append)]
    for _ in range(2):  # the first time nobody knows whether it was written
        for item in items:
            item.prepare()
        with database.write() as connection:
            ExampleItem.write(connection, items)
    for item in items:
        item.written()
    assert (told, made, items[0].is_slow) == (["kept"], [1], True)
    assert list(ExampleTable(database).read("code")) == [EXAMPLE]


def test_what_is_forgotten_while_it_waits_is_not_written(database: Database) -> None:
    told = list[str]()
    forget(database, tenant="bank")
    writer = Writer(database, CollectorRegistry())
    for number, began_at in enumerate((1.0, 1e12)):
        writer.offer(ExampleItem(partial(example, number), "acme", began_at, told.append))
    assert writer.flush(20.0)
    writer.close()
    assert (numbers_of(ExampleTable(database)), told) == ([1], ["kept"])


def test_forgetting_waits_for_examples_that_are_being_written(postgresql: str) -> None:
    with closing(opened(postgresql)) as ours, closing(opened(postgresql)) as theirs, ThreadPoolExecutor(1) as threads:
        item = ExampleItem(partial(example, 1), "acme", 1.0, nothing)
        with ours.write() as connection:
            ExampleItem.write(connection, [item])
            forgotten = threads.submit(forget, theirs, tenant="acme")
            assert num_waiting_is(1, ours)
        assert forgotten.result(10).num_examples == 1
        with ours.write() as connection:
            ExampleItem.write(connection, [item])
        assert list(ExampleTable(ours).read("code")) == []


def test_totals_say_what_there_is_without_opening_it(database: Database) -> None:
    put(database, example(1, at=5.0), example(2, at=9.0), example(3, tenant="bank"), example(4, traffic_class=CHAT))
    put(database, replace(example(5), tokenizer="other"), example(6, rule="chat"))
    with database.write() as connection:
        size = len(connection.scalars(select(documents.c.value)).all()[0])
        connection.execute(update(documents).values(value="?" * size))
    totals = ExampleTable(database).totals()
    shown = [(row.rule, row.tokenizer, row.traffic_class, row.tenant, row.number) for row in totals]
    assert shown == [
        ("chat", "words", CODE, "acme", 1),
        ("code", "other", CODE, "acme", 1),
        ("code", "words", CHAT, "acme", 1),
        ("code", "words", CODE, "acme", 2),
        ("code", "words", CODE, "bank", 1),
    ]
    own = totals[3]
    assert (own.num_tokens, own.num_bytes, own.first_at) == (10, 2 * size, 5.0)
    assert {row.num_sealed for row in totals} == {0}
    assert [(row.number, row.first_at) for row in ExampleTable(database).totals(since=5.0)] == [(1, 9.0)]
    assert ExampleTable(database).totals(rule="code") == totals[1:]
    assert ExampleTable(database).totals(rule="co") == []


def test_old_examples_and_those_without_consent_are_deleted(database: Database) -> None:
    put(database, example(1, at=NOW - 31 * DAY_S), example(2, at=NOW - DAY_S), example(3, at=NOW, tenant="bank"))
    put(database, example(4, rule="gone", at=NOW))
    table = ExampleTable(database, lambda: NOW)
    assert table.prune(bounds(tenants="acme")) == 3
    assert numbers_of(table) == [2]
    assert table.prune(bounds(tenants="acme")) == 0
    assert table.prune({}) == 1


def test_of_too_much_the_oldest_of_the_largest_class_go_first(database: Database) -> None:
    put(database, *(example(10 + number, at=NOW + number) for number in range(6)))
    put(database, *(example(20 + number, at=NOW - 9 + number, traffic_class=CHAT) for number in range(2)))
    table = ExampleTable(database, lambda: NOW)
    code, chat = (next(row for row in table.totals() if row.traffic_class == name).num_bytes for name in (CODE, CHAT))
    assert table.prune(bounds(chat + code // 2)) == 3
    assert sorted(numbers_of(table)) == [13, 14, 15, 20, 21]
    assert table.prune(bounds(0)) == 5


def test_many_examples_are_deleted_in_short_transactions(
    sqlite_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(sqlite_database, *(example(number, at=NOW + number) for number in range(1200)))
    pauses = list[int]()
    monkeypatch.setattr(sqlite_database, "give_way", lambda: pauses.append(1))
    assert ExampleTable(sqlite_database, lambda: NOW).prune({}) == 1200
    assert len(pauses) == 3
    put(sqlite_database, *(example(number) for number in range(1200)))
    assert forget(sqlite_database, tenant="acme").num_examples == 1200
    assert len(pauses) >= 6


def keyed(setting: str, keys: AuditKeys | None) -> Database:
    url = store_url(setting)
    assert url is not None
    return Database(url, options={OPTION: keys})


def test_text_is_sealed_where_chains_are_signed(setting: str, tmp_path: Path) -> None:
    keys, others = AuditKeys(tmp_path / "a.pem"), AuditKeys(tmp_path / "b.pem")
    with closing(keyed(setting, keys)) as database, closing(keyed(setting, None)) as plain:
        put(database, example(1, at=1.0), example(2, at=2.0))
        put(plain, example(3, at=3.0))
        with plain.read() as connection:
            texts = connection.scalars(select(documents.c.value).where(documents.c.kind == "example")).all()
        assert sorted("[3,2,3]" in text for text in texts) == [False, False, True]
        assert numbers_of(ExampleTable(database)) == [1, 2, 3], "what was written without a key is still there"
        assert numbers_of(ExampleTable(plain)) == [3]
        assert [(row.number, row.num_sealed) for row in ExampleTable(plain).totals()] == [(3, 2)]
    with closing(keyed(setting, others)) as changed:
        assert numbers_of(ExampleTable(changed)) == [3]


def test_what_cannot_be_opened_is_counted_and_not_fatal(
    sqlite_database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    put(sqlite_database, *(example(number) for number in range(3)))
    broken = documents.c.key.endswith(example_id("request 1"))
    for text in ("sealed:?", "sealed:AAAA", "{}"):
        with sqlite_database.write() as connection:
            connection.execute(update(documents).where(broken).values(value=text))
        assert numbers_of(ExampleTable(sqlite_database)) == [0, 2]
        printed = capsys.readouterr().out
        assert "examples_not_opened" in printed
        assert "number=1" in printed


def test_a_sealed_text_is_of_its_key_and_its_place(tmp_path: Path) -> None:
    keys = AuditKeys(tmp_path / "a.pem")
    once, again = (sealed("text", keys, "here") for _ in range(2))
    assert once != again
    assert "text" not in once
    assert unsealed(once, AuditKeys(tmp_path / "a.pem"), "here") == "text"
    assert [unsealed(once, keys, "there"), unsealed(once, None, "here"), unsealed(once[:-4], keys, "here")] == [
        None
    ] * 3
    assert unsealed(once, AuditKeys(tmp_path / "b.pem"), "here") is None
    assert sealed("text", None, "here") == unsealed("text", keys, "here") == "text"


def test_a_data_set_knows_whether_its_examples_are_there(connect: Callable[[], Database]) -> None:
    database = connect()
    put(database, example(1), example(2, tenant="bank"))
    table, both = ExampleTable(connect()), manifest(example(1), example(2, tenant="bank"))
    assert table.has(both)
    assert not table.has(manifest(example(1), example(3)))
    forget(database, tenant="bank")
    assert not table.has(both)
    assert table.has(manifest(example(1)))
