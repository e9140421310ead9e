"""Request records: as they were, once, and not for ever."""

from prolepsis.control.store import records
from prolepsis.control.store.database import Database
from tests.control.store.fakes import latest_records, record


def test_a_record_comes_back_as_it_was(database: Database) -> None:
    one, other = record(), record("other")
    with database.write() as connection:
        records.add(connection, [one, other])
    with database.read() as connection:
        [back] = latest_records(connection, 10, tenant="acme")
    assert back._asdict() == one.row
    assert (back.num_draft_tokens, back.num_accepted, back.mode) == (6, 5, "on")
    assert (back.device_prefill_s, back.device_host_s, back.predicted_plain_s) == (0.1, 0.01, 0.4)
    assert back.proposers == {
        "suffix": {
            "num_drafts": 3,
            "num_draft_tokens": 6,
            "num_accepted": 5,
            "per_position": [[3, 3], [3, 2]],
            "num_cut": 0,
            "num_delivered": None,
            "drafting": 0.0,
            "verifying": 0.0,
        }
    }


def test_a_record_that_is_sent_again_is_there_once(database: Database) -> None:
    one, other = record(), record()
    for batch in ([one], [one, other]):
        with database.write() as connection:
            records.add(connection, batch)
    with database.read() as connection:
        assert records.count(connection) == 2


def test_records_are_deleted_by_age_in_short_transactions(database: Database) -> None:
    old = [record(ended_at=100.0) for _ in range(records.DELETE_BATCH + 5)]
    with database.write() as connection:
        records.add(connection, [*old, record(ended_at=300.0)])
    assert records.prune(database, before=200.0) == len(old)
    with database.read() as connection:
        assert [left.ended_at for left in latest_records(connection, 10)] == [300.0]
