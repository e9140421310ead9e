"""Batches in the store: each line leased by one server, settled once, and what ends a batch."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier

import pytest
from sqlalchemy import func, select, update

from prolepsis.control.audit.log import forget_tenant as forget_all
from prolepsis.control.store import records
from prolepsis.control.store.batches import LEASE_S, BatchLine, BatchTable, LineResult, StoredBatch, forget_tenant
from prolepsis.control.store.database import Database
from prolepsis.control.store.responses import ResponseNews, ResponseTable, StoredResponse
from prolepsis.control.store.tables import batch_lines, batches, file_parts, response_events, responses
from prolepsis.control.store.tables import files as files_table
from prolepsis.control.store.tenant_files import PART_BYTES, FileTable, TenantFile
from prolepsis.control.store.turns import not_forgotten
from prolepsis.core.errors import StoreConflict
from tests.control.store.fakes import DatabaseClock, record

Connect = Callable[[], Database]
DONE = LineResult("completed", '{"said":"Grüße"}', (5, 1, 3, 0))
LOST = LineResult("failed", '{"said":"no"}')


def batch(name: str = "batch_a", tenant: str = "acme", created_at: float = 10.0) -> StoredBatch:
    return StoredBatch(
        batch_id=name,
        tenant=tenant,
        key_id="",
        model="",
        input_file_id="file-in",
        document={"endpoint": "/v1/completions"},
        status="validating",
        created_at=created_at,
        expires_at=1e12,
    )


def file(name: str, tenant: str = "acme") -> TenantFile:
    return TenantFile(
        file_id=name, tenant=tenant, purpose="batch", filename="", num_bytes=3, created_at=10.0, expires_at=1e12
    )


def lines(number: int, name: str = "batch_a") -> list[BatchLine]:
    """Return lines whose prefixes are in the opposite order."""
    return [
        BatchLine(batch_id=name, number=i, custom_id=f"c{i}", prefix=f"{number - i:03}", start=10 * i, length=9)
        for i in range(1, number + 1)
    ]


def begun(table: BatchTable, number: int) -> None:
    table.add(batch())
    assert table.take_reading("batch_a")
    table.add_lines("batch_a", lines(number))
    table.begin("batch_a", "tiny")


def test_lines_are_leased_in_the_order_of_their_prefixes(database: Database) -> None:
    table = BatchTable(database)
    begun(table, 5)
    assert [line.number for line in table.claim("batch_a", 2)] == [5, 4]
    assert [(line.number, line.start, line.length) for line in table.claim("batch_a", 9)] == [
        (3, 30, 9),
        (2, 20, 9),
        (1, 10, 9),
    ]
    assert table.claim("batch_a", 9) == []


def test_servers_that_claim_at_once_get_different_lines(connect: Connect) -> None:
    tables = [BatchTable(connect()) for _ in range(4)]
    begun(tables[0], 200)
    barrier = Barrier(len(tables))

    def work(table: BatchTable) -> list[int]:
        barrier.wait()
        found = list[int]()
        while claimed := table.claim("batch_a", 7):
            assert table.settle([(line, DONE) for line in claimed]) == ["completed"] * len(claimed)
            found += [line.number for line in claimed]
        return found

    with ThreadPoolExecutor(len(tables)) as threads:
        shares = list(threads.map(work, tables))
    assert sorted(number for share in shares for number in share) == list(range(1, 201))
    assert tables[0].counts("batch_a")["request_counts"] == {"total": 200, "completed": 200, "failed": 0}


def test_a_line_of_a_lost_server_runs_again_and_is_settled_once(connect: Connect) -> None:
    clock = DatabaseClock()
    lost, other = (BatchTable(connect(), now=clock) for _ in range(2))
    begun(lost, 1)
    [first] = lost.claim("batch_a", 1)
    clock.now += LEASE_S - 1
    lost.renew([first])
    clock.now += LEASE_S - 1
    assert other.claim("batch_a", 1) == []
    clock.now += 2
    [second] = other.claim("batch_a", 1)
    lost.renew([first])
    assert lost.settle([(first, DONE)]) == []
    assert other.settle([(second, LOST)]) == ["failed"]
    assert other.settle([(second, DONE)]) == []
    assert other.counts("batch_a")["request_counts"] == {"total": 1, "completed": 0, "failed": 1}


def test_a_lease_that_is_given_back_is_free_at_once(database: Database) -> None:
    table = BatchTable(database)
    begun(table, 1)
    table.renew(table.claim("batch_a", 1), for_s=0.0)
    assert len(table.claim("batch_a", 1)) == 1


def test_a_batch_ends_once_with_its_files(connect: Connect) -> None:
    first, second = (BatchTable(connect()) for _ in range(2))
    begun(first, 3)
    one, two, three = first.claim("batch_a", 3)
    first.settle([(one, DONE), (two, LOST)])
    assert not first.finish("batch_a", "completed", "in_progress", 100.0)
    first.settle([(three, DONE)])
    assert [table.finish("batch_a", "completed", "in_progress", 100.0) for table in (first, second)] == [True, False]
    found = first.get("acme", "batch_a")
    assert found is not None
    assert found.status == "completed"
    assert found.document["request_counts"] == {"total": 3, "completed": 2, "failed": 1}
    assert found.document["usage"] == {
        "input_tokens": 10,
        "input_tokens_details": {"cached_tokens": 2},
        "output_tokens": 6,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 16,
    }
    files = FileTable(connect())
    output = files.get("acme", str(found.document["output_file_id"]))
    assert output is not None
    content = b"".join(files.pages(output))
    assert content == f"{DONE.text}\n".encode() * 2
    assert output.num_bytes == len(content)
    assert files.get("other", output.file_id) is None
    files.remove(output)
    assert b"".join(files.pages(output)) == b""
    assert first.running() == []


def test_what_did_not_run_is_written_off(connect: Connect) -> None:
    clock = DatabaseClock()
    table, other = (BatchTable(connect(), now=clock) for _ in range(2))
    begun(table, 1200)
    [held] = table.claim("batch_a", 1)
    seen = list[str]()

    def late(custom_id: str) -> LineResult:
        seen.append(custom_id)
        return LOST

    table.write_off("batch_a", late, running=False)
    assert len(seen) == 1199
    assert held.custom_id not in seen
    other.write_off("batch_a", late, running=True)
    assert seen[-1] == held.custom_id
    assert table.settle([(held, DONE)]) == []
    assert table.finish("batch_a", "expired", "in_progress", 100.0)


def test_reading_that_broke_off_begins_again(connect: Connect) -> None:
    clock = DatabaseClock()
    lost, other = (BatchTable(connect(), now=clock) for _ in range(2))
    lost.add(batch())
    assert lost.take_reading("batch_a")
    lost.add_lines("batch_a", lines(3))
    assert not other.take_reading("batch_a")
    clock.now += LEASE_S + 1
    assert other.take_reading("batch_a")
    assert other.counts("batch_a")["request_counts"] == {"total": 0, "completed": 0, "failed": 0}


def test_a_batch_that_has_ended_stays_so(database: Database) -> None:
    table = BatchTable(database)
    table.add(batch())
    assert table.change("batch_a", "failed", ["validating"], failed_at=5)
    assert not table.change("batch_a", "cancelling", ["validating", "in_progress"])
    table.begin("batch_a", "tiny")
    found = table.get("acme", "batch_a")
    assert found is not None
    assert (found.status, found.document["failed_at"]) == ("failed", 5)


def test_ended_batches_and_files_are_forgotten(database: Database) -> None:
    table, files = BatchTable(database), FileTable(database)
    begun(table, 1)
    table.settle([(line, DONE) for line in table.claim("batch_a", 1)])
    table.add(batch("batch_b"))
    for name in ("file-in", "file-old"):
        files.put(replace(file(name), expires_at=20.0), [b"abc"])
    table.finish("batch_a", "completed", "in_progress", 100.0)
    table.forget(before=20.0)
    assert files.bytes_of("file-in", 0, 3) == b"abc"  # a batch that runs needs it
    assert files.bytes_of("file-old", 0, 3) == b""
    assert len(table.newest("acme", after=None, most=9)) == 2  # one runs, one has a file
    [output] = files.newest("acme", purpose="batch_output", after=None, most=9)
    files.remove(output)
    table.forget(before=5.0)
    assert len(table.newest("acme", after=None, most=9)) == 2
    table.forget(before=20.0)
    assert [one.batch_id for one in table.newest("acme", after=None, most=9)] == ["batch_b"]


def test_an_upload_that_breaks_off_leaves_nothing(database: Database) -> None:
    def parts() -> Iterator[bytes]:
        yield b"abc"
        raise TimeoutError

    files = FileTable(database)
    with pytest.raises(TimeoutError):
        files.put(file("file-a"), parts())
    assert files.newest("acme", purpose=None, after=None, most=9, ascending=True) == []
    assert files.bytes_of("file-a", 0, 3) == b""


def test_a_piece_of_a_file_may_lie_in_several_parts(database: Database) -> None:
    files, parts = FileTable(database), [bytes([i]) * PART_BYTES for i in range(2)] + [b"end"]
    files.put(file("file-a"), parts)
    whole = b"".join(parts)
    for start, length in ((0, 1), (PART_BYTES - 2, 4), (PART_BYTES, PART_BYTES), (5, 2 * PART_BYTES), (9, 9 * 2**20)):
        assert files.bytes_of("file-a", start, length) == whole[start : start + length]
    assert files.bytes_of("file-a", len(whole), 5) == b""


def test_a_tenant_is_forgotten_with_all_it_has(database: Database) -> None:
    table, files = BatchTable(database), FileTable(database)
    begun(table, 2)
    [line, _] = table.claim("batch_a", 2)
    table.add(batch("batch_b", "other"))
    files.put(file("file-a"), [b"abc"])
    files.put(file("file-b", "other"), [])
    forget_tenant(database, "acme")
    assert table.settle([(line, DONE)]) == []
    assert table.counts("batch_a")["request_counts"] == {"total": 0, "completed": 0, "failed": 0}
    assert files.bytes_of("file-a", 0, 3) == b""
    assert (table.get("acme", "batch_a"), files.get("acme", "file-a")) == (None, None)
    assert table.get("other", "batch_b") is not None
    assert files.get("other", "file-b") is not None


def counted(database: Database) -> dict[str, int]:
    tables = (files_table, file_parts, batches, batch_lines, responses, response_events)
    with database.read() as connection:
        return {
            table.name: number
            for table in tables
            if (number := connection.scalar(select(func.count()).select_from(table)))
        }


def test_a_file_is_kept_and_deleted_in_small_transactions(database: Database) -> None:
    files, other, seen = FileTable(database), BatchTable(database), list[object]()

    def parts() -> Iterator[bytes]:
        for i in range(3):
            seen.append(files.get("acme", "file-a"))  # it is not there yet
            seen.append(other.add(batch(f"batch_{i}", "other")))  # while others write
            yield bytes([i]) * PART_BYTES

    assert files.put(file("file-a"), parts(), most_bytes=3)
    assert seen == [None, True] * 3
    assert files.get("acme", "file-a") == file("file-a")
    files.remove(file("file-a"))
    assert counted(database) == {"batches": 3}


def test_a_file_that_a_killed_server_left_is_forgotten(database: Database) -> None:
    files, table = FileTable(database), BatchTable(database)
    files.put(file("file-a"), [b"abc"])
    with database.write() as connection:  # as it is before the last part
        left = {"line_state": "unfinished", "expires_at": time.time() + 60.0}
        connection.execute(update(files_table).values(left))
    table.forget(before=0.0)
    assert (files.get("acme", "file-a"), files.held_bytes("acme")) == (None, 3)
    with database.write() as connection:
        connection.execute(update(files_table).values(expires_at=time.time() - 1.0))
    assert files.held_bytes("acme") == 0
    table.forget(before=0.0)
    assert counted(database) == {}


def test_limits_hold_for_servers_that_take_at_once(connect: Connect) -> None:
    """What is counted is taken in the same transaction: of 12 that come at once, as many as are allowed get in."""
    databases = [connect() for _ in range(3)]
    barrier = Barrier(12)

    def take(number: int) -> list[bool]:
        database = databases[number % 3]
        barrier.wait()
        return [
            FileTable(database).put(file(f"file-{number}"), [b"abc"], most_bytes=12),
            BatchTable(database).add(batch(f"batch_{number}"), most_running=4),
            ResponseTable(database).add(running(f"resp_{number}"), most_bytes=10**9, most_running=4),
        ]

    with ThreadPoolExecutor(12) as threads:
        taken = list(threads.map(take, range(12)))
    assert [sum(one[kind] for one in taken) for kind in range(3)] == [4, 4, 4]
    assert counted(databases[0]) == {"files": 4, "file_parts": 4, "batches": 4, "responses": 4}


def running(name: str, tenant: str = "acme") -> StoredResponse:
    return StoredResponse(
        response_id=name,
        tenant=tenant,
        previous_id=None,
        document={"id": name, "status": "in_progress", "output": []},
        input=[],
        num_bytes=9,
        created_at=10.0,
        expires_at=1e12,
        began_at=time.time(),
    )


def test_a_tenant_that_is_forgotten_while_it_is_served_leaves_nothing(database: Database) -> None:
    """A file arrives, a batch is read, a line and a response run, and records are written: before and after."""
    table, files, answers = BatchTable(database), FileTable(database), ResponseTable(database)
    begun(table, 2)
    [line, _] = table.claim("batch_a", 2)
    table.add(batch("batch_b"))
    table.take_reading("batch_b")
    answers.add(running("resp_a"), most_bytes=10**9, events=("0",))
    of_before, late = record(), running("resp_late")

    def parts() -> Iterator[bytes]:
        yield b"abc"
        with database.write() as connection:
            items = not_forgotten(connection, [of_before, record("other")])
            records.add(connection, items)
        assert forget_all(database, "acme", "tester").num_records == 1
        yield b"def"

    with pytest.raises(StoreConflict, match="deleted"):
        files.put(file("file-a"), parts())
    assert not table.add_lines("batch_b", lines(2, "batch_b"))
    assert table.settle([(line, DONE)]) == []
    assert not table.finish("batch_a", "completed", "in_progress", 100.0)
    assert answers.keep([ResponseNews("resp_a", None, [(1, "1")])]) == set()
    answers.add(late, most_bytes=10**9)
    assert counted(database) == {}
    with database.write() as connection:
        again = [of_before, record("other"), record()]
        assert not_forgotten(connection, again) == again[1:], "what begins later is of a tenant that is there"


@pytest.mark.parametrize("character", ["\x00", "\ud800"])
def test_characters_that_no_database_holds_are_replaced(database: Database, character: str) -> None:
    odd, files = f"a{character}b", FileTable(database)
    files.put(replace(file("file-a"), filename=odd), [b"abc"])
    found = files.get("acme", "file-a")
    assert found is not None
    assert found.filename == "a\ufffdb"
    assert files.get("acme", odd) is None
    table = BatchTable(database)
    table.add(replace(batch(), document={"metadata": {odd: odd}}))
    table.take_reading("batch_a")
    table.add_lines("batch_a", [replace(lines(1)[0], custom_id=odd)])
    table.begin("batch_a", odd)
    assert [line.custom_id for line in table.claim("batch_a", 1)] == ["a\ufffdb"]


def test_pages_of_results_are_bounded_by_bytes(database: Database) -> None:
    table, files = BatchTable(database), FileTable(database)
    begun(table, 5)
    large = LineResult("completed", "x" * (PART_BYTES - 100))
    table.settle([(line, large) for line in table.claim("batch_a", 5)])
    assert table.finish("batch_a", "completed", "in_progress", 100.0)
    [output] = files.newest("acme", purpose="batch_output", after=None, most=9)
    assert [len(page) // PART_BYTES for page in files.pages(output)] == [1, 1, 0]
