"""Taking a run: who may, and what is said to those who may not."""

from dataclasses import replace
from pathlib import Path

import pytest

from prolepsis.control.store.lineage import RunTable
from prolepsis.control.store.migrate import migrated_in_memory
from prolepsis.core.learning import LearningRun, run_folders
from prolepsis.training.held_run import LEASE_S
from prolepsis.training.learning import TARGET_DIGITS, take

NOW, IDENTITY = 5_000.0, "0123456789abcdef" * 2
DUE = LearningRun(
    rule="code", trigger="hand", model="tiny", target=IDENTITY[:TARGET_DIGITS], terms={"tenants": ["acme"]}
)
OTHERS = LearningRun(
    run_id="code-1", rule="code", phase="training", holder="host 1", leased_until=NOW + 60.0, target=DUE.target
)


@pytest.fixture(autouse=True)
def _data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROLEPSIS_DATA", str(tmp_path))


def _runs(*stored: LearningRun) -> RunTable:
    runs = RunTable(migrated_in_memory(), lambda: NOW)
    for run in stored:
        assert runs.swap(run)
    return runs


def _taken(
    runs: RunTable, rule: str = "code", due: LearningRun | None = DUE, identity: str = IDENTITY
) -> LearningRun | str:
    return take(runs, rule, due, identity, store="s")


def test_a_hand_begins_a_run() -> None:
    runs = _runs()
    run = _taken(runs)
    assert run == runs.read()
    assert isinstance(run, LearningRun)
    assert (run.phase, run.rule, run.trigger, run.leased_until) == ("training", "code", "hand", NOW + LEASE_S)
    assert (run.target, run.terms) == (DUE.target, DUE.terms)
    again = _taken(runs)
    assert again == f"the run of code is under way: {run.holder} holds it for 300 s more"


def test_a_run_that_is_due_is_taken_by_whoever_waits() -> None:
    due = replace(OTHERS, phase="due", holder="", leased_until=0.0, trigger="drift")
    assert _taken(_runs(due), "another", None) == "a run of code is under way (due), and there is one at a time"
    run = _taken(_runs(due), "", None)
    assert isinstance(run, LearningRun)
    assert (run.run_id, run.phase, run.since) == ("code-1", "training", NOW)


def test_a_lease_that_ran_out_is_taken_over_with_the_same_run() -> None:
    runs = _runs(replace(OTHERS, leased_until=NOW, since=7.0, processor_s=9.0))
    run = _taken(runs)
    assert isinstance(run, LearningRun)
    assert (run.run_id, run.since, run.processor_s) == ("code-1", 7.0, 9.0)
    assert run.holder != "host 1"


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        (OTHERS, "the run of code is under way: host 1 holds it for 60 s more"),
        (replace(OTHERS, phase="trial"), "the run of code is under way: trial"),
        (replace(OTHERS, phase="settling"), "the run of code is under way: settling"),
        (replace(OTHERS, rule="chat", leased_until=0.0), "a run of chat is under way (training), and there is one"),
    ],
)
def test_a_run_that_is_under_way_is_left_alone(stored: LearningRun, expected: str) -> None:
    runs = _runs(stored)
    refused = _taken(runs)
    assert isinstance(refused, str)
    assert refused.startswith(expected)
    assert runs.read() == replace(stored, version=1)


def test_a_run_for_other_weights_says_what_to_do() -> None:
    runs = _runs(replace(OTHERS, leased_until=0.0, model="large", target="f" * TARGET_DIGITS))
    assert _taken(runs) == (
        f"the run of code is for the weights {'f' * 16} of large, and the model here has 0123456789abcdef: name that "
        "one (PROLEPSIS_MODEL), or end the run with PUT /admin/learning"
    )


def test_without_a_block_nothing_begins() -> None:
    assert _taken(_runs(), due=None) == "no run of code is due"
    assert _taken(_runs(), "", None) == "no run is due"


def test_a_run_that_had_spent_its_budget_goes_on_where_its_folder_is() -> None:
    stopped = replace(OTHERS, phase="ended", outcome="stopped", holder="", leased_until=0.0, processor_s=99.0)
    new = _taken(_runs(stopped))
    assert isinstance(new, LearningRun)
    assert new.run_id == f"code-{NOW:.0f}"
    (run_folders("s") / stopped.run_id).mkdir(parents=True)
    run = _taken(_runs(stopped))
    assert isinstance(run, LearningRun)
    assert (run.run_id, run.phase, run.outcome, run.processor_s) == ("code-1", "training", None, 0.0)
    assert run.terms == DUE.terms
    other = _taken(_runs(replace(stopped, rule="chat")))
    assert isinstance(other, LearningRun)
    assert other.run_id == f"code-{NOW:.0f}"
