"""Responses in the store: conversations, room, leases, events, and what ends one from outside."""

import json
from dataclasses import replace

from prolepsis.control.store.database import Database
from prolepsis.control.store.responses import MOST_STORED, ResponseNews, ResponseTable, StoredResponse, forget_tenant
from prolepsis.control.store.tables import responses
from tests.control.store.fakes import DatabaseClock

ERROR = {"code": "server_error", "message": "lost"}


def stored(
    name: str = "resp_a", status: str = "completed", tenant: str = "", *, previous: str | None = None, at: float = 10.0
) -> StoredResponse:
    return StoredResponse(
        response_id=name,
        tenant=tenant,
        previous_id=previous,
        document={"id": name, "status": status, "output": [{"id": f"msg_{name}"}]},
        input=[{"id": f"in_{name}"}],
        num_bytes=100,
        created_at=at,
        expires_at=1e12,
    )


def add(table: ResponseTable, *some: StoredResponse, events: tuple[str, ...] = ()) -> None:
    for one in some:
        table.add(one, most_bytes=10**9, events=events)


def names(table: ResponseTable, *asked: str, tenant: str = "") -> list[str]:
    return [name for name in asked if table.conversation(tenant, name)]


def test_a_conversation_is_read_from_its_end(database: Database) -> None:
    table = ResponseTable(database)
    first, second = stored("resp_a"), stored("resp_b", previous="resp_a")
    add(table, first, second)
    assert table.conversation("", "resp_b") == [first, second]
    assert table.conversation("other", "resp_b") == []
    assert table.conversation("", None) == []
    assert table.remove("", "resp_a")
    assert not table.remove("", "resp_a")
    assert table.conversation("", "resp_b") == [second]


def test_the_oldest_make_room(database: Database) -> None:
    table = ResponseTable(database)
    running = stored("resp_r", "in_progress", at=1.0)
    add(table, running, *(stored(f"resp_{i}", at=10.0 + i) for i in range(4)), stored("resp_o", tenant="other"))
    table.add(stored("resp_4", at=14.0), most_bytes=300)
    assert names(table, *(f"resp_{i}" for i in range(5)), "resp_r") == ["resp_2", "resp_3", "resp_4", "resp_r"]
    assert names(table, "resp_o", tenant="other") == ["resp_o"]
    table.add(stored("resp_5", at=15.0), most_bytes=1)
    assert names(table, "resp_4", "resp_5") == ["resp_5"], "the newest one stays, whatever its size"


def test_a_tenant_has_so_many(database: Database) -> None:
    table = ResponseTable(database)
    with database.write() as connection:
        shown = {"tenant": "", "status": "completed", "input": "[]", "document": "{}", "num_bytes": 1}
        times = [{"created_at": 1.0 + i, "expires_at": 1e12, "leased_until": 0.0} for i in range(MOST_STORED)]
        rows = [{**shown, **at, "response_id": f"resp_{i}"} for i, at in enumerate(times)]
        connection.execute(responses.insert(), rows)
    add(table, stored("resp_new", at=1e6))
    assert table.remove("", "resp_1")
    assert not table.remove("", "resp_0")


def test_what_has_expired_is_not_there_and_is_forgotten(database: Database) -> None:
    table = ResponseTable(database)
    add(table, replace(stored(), expires_at=20.0), stored("resp_b"))
    assert names(table, "resp_a", "resp_b") == ["resp_b"]
    table.forget()
    with database.read() as connection:
        assert [row.response_id for row in connection.execute(responses.select())] == ["resp_b"]


def test_a_running_response_gets_its_news_until_it_ends(database: Database) -> None:
    table = ResponseTable(database)
    add(table, stored(status="queued"), events=('"0"',))
    running = {**stored().document, "status": "in_progress"}
    assert table.keep([ResponseNews("resp_a", running, [(1, '"1"')], 7)]) == {"resp_a"}
    assert table.events("", "resp_a", -1, 9) == ("in_progress", ['"0"', '"1"'])
    assert table.events("", "resp_a", 0, 1) == ("in_progress", ['"1"'])
    assert table.events("other", "resp_a", -1, 9) == (None, [])
    assert table.keep([ResponseNews("resp_a", stored().document, [(2, '"2"')], 9)]) == {"resp_a"}
    assert table.keep([ResponseNews("resp_a", running, [(3, '"3"')], 9), ResponseNews("resp_none", running)]) == set()
    assert table.events("", "resp_a", 0, 9) == ("completed", ['"1"', '"2"'])
    assert table.conversation("", "resp_a")[0].num_bytes == 9


def test_a_cancelled_response_has_a_last_event_and_no_more(database: Database) -> None:
    table = ResponseTable(database)
    add(table, stored(status="in_progress"), events=('"0"',))
    add(table, stored("resp_b", "in_progress"), stored("resp_c"))
    cancelled = table.cancel("", "resp_a")
    assert cancelled is not None
    assert cancelled.status == "cancelled"
    status, events = table.events("", "resp_a", 0, 9)
    assert (status, json.loads(events[0])) == (
        "cancelled",
        {"type": "response.incomplete", "response": cancelled.document, "sequence_number": 1},
    )
    assert table.keep([ResponseNews("resp_a", stored().document, [(1, '"late"')])]) == set()
    assert table.cancel("", "resp_a") == cancelled
    table.cancel("", "resp_b")
    assert table.events("", "resp_b", -1, 9) == ("cancelled", []), "none are kept of it"
    assert (done := table.cancel("", "resp_c")) is not None
    assert done.status == "completed"
    assert table.cancel("other", "resp_a") is None


def test_a_response_whose_lease_has_lapsed_fails(database: Database) -> None:
    clock = DatabaseClock()
    table = ResponseTable(database, now=clock)
    add(table, stored(status="in_progress"), events=('"0"',))
    add(table, stored("resp_b", "queued"), stored("resp_c"))
    clock.now += 5
    assert table.keep([ResponseNews("resp_b", stored("resp_b", "queued").document)]) == {"resp_b"}
    clock.now += 2
    for name, _ in table.lost():
        table.fail_lost(name, ERROR)
    assert [table.conversation("", name)[0].status for name in ("resp_a", "resp_b", "resp_c")] == [
        "failed",
        "queued",
        "completed",
    ]
    assert table.conversation("", "resp_a")[0].document["error"] == ERROR
    assert json.loads(table.events("", "resp_a", 0, 9)[1][0])["type"] == "response.failed"


def test_a_forgotten_tenant_has_no_responses(database: Database) -> None:
    table = ResponseTable(database)
    add(table, stored(tenant="acme", status="in_progress"), events=('"0"',))
    add(table, stored("resp_b", tenant="other"))
    forget_tenant(database, "acme")
    assert names(table, "resp_a", tenant="acme") == []
    assert names(table, "resp_b", tenant="other") == ["resp_b"]
    assert table.events("acme", "resp_a", -1, 9) == (None, [])
