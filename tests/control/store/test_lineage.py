"""Data sets, heads and the run in the store, and what forgetting does to all of them."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from itertools import count

import pytest

from prolepsis.control.store import records
from prolepsis.control.store.database import Database, hold
from prolepsis.control.store.examples import ExampleTable, example_id
from prolepsis.control.store.lineage import ForgottenExamples, LineageTable, RunTable, forget
from prolepsis.control.store.tenant_files import PART_BYTES, FileTable
from prolepsis.core.errors import InvalidParameter
from prolepsis.core.learning import HeadLineage, LearningRun, tenant_digest
from tests.control.store.databases import num_waiting_is, opened
from tests.control.store.fakes import record
from tests.control.store.learnt import example, manifest, put

OURS, THEIRS = example(1), example(2, tenant="bank")
SHARED = manifest(OURS, example(3), THEIRS)
ALONE = manifest(THEIRS, rule="chat")


def head(*manifests: str, rule: str = "code", parent: str = "shipped") -> HeadLineage:
    return HeadLineage(rule=rule, parent=parent, manifests=manifests, serves=(), sha256="ab", made_at=7.0)


@pytest.fixture
def table(database: Database) -> LineageTable:
    """Two data sets, whose heads are code@1, code@2 (made from code@1) and chat@1, with weights."""
    table = LineageTable(database, count(100.0).__next__)
    put(database, OURS, example(3), THEIRS, example(4, tenant="bank", rule="chat"))
    shared, alone = table.add_dataset(SHARED), table.add_dataset(ALONE)
    assert table.add_head("code@1", head(shared))
    assert table.add_head("code@2", head(shared, "later", parent="code@1"))
    assert table.add_head("chat@1", head(alone, rule="chat"))
    for label in table.heads():
        table.put_weights(label, label.encode())
    return table


def states(table: LineageTable) -> dict[str, str]:
    """Return why heads are retired, or will be, without the day."""
    return {label: (one.retired or one.touched).rpartition(" ")[0] for label, one in table.heads().items()}


def test_data_sets_and_heads_are_kept_once(table: LineageTable) -> None:
    key = table.add_dataset(SHARED)
    assert key == table.add_dataset(replace(SHARED, made_at=5)), "5 and 5.0 are one number"
    assert table.datasets() == {key: SHARED, table.add_dataset(ALONE): ALONE}
    assert not table.add_head("code@1", head("other"))
    assert table.heads()["code@1"] == head(key)
    table.promoted("code@1")
    assert table.heads()["code@1"] == replace(head(key), promoted_at=103.0)


def test_weights_are_kept_in_parts_and_replaced(table: LineageTable, connect: Callable[[], Database]) -> None:
    archive = bytes(range(256)) * (2 * PART_BYTES // 256) + b"end"
    for content in (b"first", archive):
        table.put_weights("code@1", content)
    other = LineageTable(connect())
    assert [other.weights("code@1"), other.weights("code@2"), other.weights("code@9")] == [archive, b"code@2", None]
    assert len(FileTable(connect()).of_purposes("head:")) == 3


def test_a_retired_head_stays_so_and_its_weights_are_deleted(table: LineageTable) -> None:
    assert [table.retire("code@1", why) for why in ("slow", "slower")] == [True, False]
    assert not table.retire("unknown", "slow")
    assert (table.heads()["code@1"].retired, table.weights("code@1"), table.weights("code@2")) == (
        "slow",
        None,
        b"code@2",
    )


def test_a_tenant_takes_its_ids_and_what_learnt_from_it_along(table: LineageTable, database: Database) -> None:
    shared, alone = table.datasets()
    if table.datasets()[shared] != SHARED:
        shared, alone = alone, shared
    forgotten = forget(database, tenant="acme")
    assert forgotten == ForgottenExamples(2, retired=("code@1", "code@2"))
    acme, bank = tenant_digest("acme"), tenant_digest("bank")
    left = {acme: (), bank: (THEIRS.example_id[:16],)}
    assert table.datasets() == {shared: replace(SHARED, examples=left), alone: ALONE}
    assert states(table) == {"code@1": "tenant forgotten", "code@2": "tenant forgotten", "chat@1": ""}
    assert [table.weights(label) for label in ("code@1", "code@2", "chat@1")] == [None, None, b"chat@1"]
    assert [each.tenant for each in ExampleTable(database).read("code")] == ["bank"]
    assert "acme" not in str(table.heads()) + str(table.datasets()).replace("['acme']", "")
    assert forget(database, tenant="acme") == ForgottenExamples()


def test_heads_stay_until_the_next_promotion_where_the_policy_says_so(table: LineageTable, database: Database) -> None:
    forgotten = forget(database, tenant="bank", later={"code"})
    assert forgotten == ForgottenExamples(2, retired=("chat@1",), touched=("code@1", "code@2"))
    assert forget(database, tenant="bank", later={"code"}) == ForgottenExamples()
    assert {label: bool(one.retired) for label, one in table.heads().items()} == {
        "chat@1": True,
        "code@1": False,
        "code@2": False,
    }
    assert table.weights("code@1") == b"code@1"
    table.add_head("code@3", head("of others"))
    table.add_head("chat@2", head("of others", rule="chat"))
    table.promoted("chat@2")
    assert not table.heads()["code@1"].retired, "another rule's"
    table.promoted("code@3")
    assert states(table) == {
        "chat@1": "tenant forgotten",
        "chat@2": "",
        "code@1": "tenant forgotten",
        "code@2": "tenant forgotten",
        "code@3": "",
    }
    assert all(table.heads()[label].retired for label in ("code@1", "code@2"))
    assert table.weights("code@1") is None


def test_a_policy_that_changed_since_retires_at_once(table: LineageTable, database: Database) -> None:
    assert forget(database, tenant="acme", later={"code"}).touched == ("code@1", "code@2")
    assert forget(database, tenant="acme").retired == ("code@1", "code@2")


def test_one_request_is_forgotten_by_any_of_its_names(table: LineageTable, database: Database) -> None:
    with database.write() as connection:
        records.add(connection, [record(request_id="request 1", http_request_id="from the client")])
    assert forget(database, tenant="bank", request_id="from the client") == ForgottenExamples()
    assert forget(database, request_id="from the client") == ForgottenExamples(1, retired=("code@1", "code@2"))
    [changed] = [one for one in table.datasets().values() if one.rule == "code"]
    assert changed.examples[tenant_digest("acme")] == (example_id("request 3")[:16],)
    assert sorted(each.prompt[0] for each in ExampleTable(database).read("code")) == [2, 3]
    assert states(table)["code@1"] == "request forgotten"
    assert forget(database, tenant="bank", request_id="request 4").num_examples == 1


def test_a_rule_is_forgotten_with_the_tenant_without_a_name(table: LineageTable, database: Database) -> None:
    put(database, example(5, tenant="", rule="chat"))
    table.add_head(
        "chat@2", head(table.add_dataset(manifest(example(5, tenant="", rule="chat"), rule="chat")), rule="chat")
    )
    assert forget(database, tenant="", rule="code") == ForgottenExamples()
    assert forget(database, tenant="", rule="chat") == ForgottenExamples(1, retired=("chat@2",))
    assert forget(database, rule="chat") == ForgottenExamples(1, retired=("chat@1",))
    assert [len(list(ExampleTable(database).read(rule))) for rule in ("code", "chat")] == [3, 0]
    assert states(table)["chat@1"] == "examples of the rule forgotten"
    with pytest.raises(InvalidParameter, match="a tenant, a request or a rule"):
        forget(database)


def test_a_head_of_what_was_forgotten_while_it_was_trained_never_drafts(
    table: LineageTable, database: Database
) -> None:
    key = table.add_dataset(replace(SHARED, made_at=8.0))
    forget(database, tenant="acme")
    assert table.add_head("code@3", head(key))
    assert table.heads()["code@3"].retired == "what it learnt from was forgotten"


def test_a_head_that_is_added_while_others_forget_waits_for_it(table: LineageTable, postgresql: str) -> None:
    with closing(opened(postgresql)) as ours, closing(opened(postgresql)) as theirs, ThreadPoolExecutor(1) as threads:
        with ours.write() as connection:
            hold(connection, "learning:lineage")
            added = threads.submit(LineageTable(theirs).add_head, "code@3", head("x"))
            assert num_waiting_is(1, ours)
        assert added.result(10)


def test_of_two_that_change_the_run_one_wins(connect: Callable[[], Database]) -> None:
    first, second = (RunTable(connect(), lambda: 9.0) for _ in range(2))
    assert first.read() == LearningRun()
    due = replace(first.read(), run_id="r1", rule="code", phase="due", terms={"days": 30.0})
    assert [first.swap(due), second.swap(due)] == [True, False]
    assert second.read() == replace(due, version=1)
    taken = replace(second.read(), holder="gpu", phase="training")
    assert [second.swap(taken), first.swap(replace(due, version=1))] == [True, False]
    assert first.read() == replace(taken, version=2)
    assert first.now() == 9.0


def test_time_is_the_database_s(database: Database) -> None:
    assert abs(RunTable(database).now() - RunTable(database).now()) < 60.0
    assert RunTable(database).now() > 1.7e9
