"""A held run: its lease is renewed and can be lost, it pauses for requests, and its budget ends it."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from prolepsis.control.learning.machine import Ended, Evaluated
from prolepsis.control.policy.learning_terms import LearningTerms
from prolepsis.control.store.lineage import RunTable
from prolepsis.control.store.migrate import migrated_in_memory
from prolepsis.core.learning import LearningRun
from prolepsis.training.held_run import LEASE_S, BudgetSpent, HeldRun, RunLost

NOW = 1_000_000.0


class Site:
    """A store and a process, on one clock that waiting moves."""

    def __init__(self, **terms: object) -> None:
        self.now, self.processor, self.slept = 50.0, 7.0, list[float]()
        self.database = migrated_in_memory()
        self.runs = RunTable(self.database, lambda: NOW + self.now)
        document: Mapping[str, object] = {"tenants": ["acme"], "share": 1.0, **terms}
        run = LearningRun(
            run_id="code-1",
            rule="code",
            phase="training",
            holder="host 1",
            leased_until=NOW + 50.0 + LEASE_S,
            terms=document,
            processor_s=100.0,
        )
        assert self.runs.swap(run)
        self.held = HeldRun(
            self.runs,
            self.runs.read(),
            processor=lambda: self.processor,
            sleep=self.sleep,
        )

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def change(self, **changes: object) -> None:
        assert self.runs.swap(replace(self.runs.read(), **changes))  # type: ignore[arg-type]


def test_the_terms_are_those_of_the_run() -> None:
    terms = LearningTerms.model_validate_json(
        '{"tenants": ["acme"], "when": {"time": {"hours": "01:00-05:00"}}, "stages": [5]}'
    )
    assert Site(**terms.model_dump(mode="json")).held.terms == terms


def test_the_lease_is_renewed_with_the_figures_of_the_run() -> None:
    site = Site()
    site.now += 30.0
    site.held.check()
    assert site.runs.read().version == 1, "it is fresh"
    site.now, site.processor, site.held.progress = site.now + 31.0, site.processor + 5.0, 0.25
    site.held.check()
    run = site.runs.read()
    assert (run.leased_until, run.processor_s, run.progress) == (NOW + site.now + LEASE_S, 105.0, 0.25)


@pytest.mark.parametrize("changes", [{"holder": "host 2"}, {"phase": "ended"}, {"run_id": "code-2"}])
def test_a_run_of_somebody_else_is_lost(changes: dict[str, object]) -> None:
    site = Site()
    site.change(**changes)
    stored = site.runs.read()
    assert site.held.step(Ended("failed")) == stored == site.runs.read()
    with pytest.raises(RunLost):
        site.held.check()
    assert site.runs.read().outcome is None


def test_a_change_by_a_server_is_kept() -> None:
    site = Site()
    site.change(paused_until=NOW + 60.0)
    after = site.held.step(Evaluated("code@1"))
    assert after == site.runs.read()
    assert (after.phase, after.head, after.processor_s, after.holder) == ("trial", "code@1", 100.0, "")


def test_a_lease_that_ran_out_is_still_ours_unless_somebody_took_it() -> None:
    site = Site()
    site.now += 10 * LEASE_S
    site.held.check()
    assert site.runs.read().leased_until == NOW + site.now + LEASE_S


def test_it_waits_while_requests_run_and_goes_on_at_once_where_it_is_lost() -> None:
    site = Site()
    site.change(paused_until=NOW + site.now + 5.0)
    site.held.check()
    assert site.slept == [2.0, 2.0, 1.0]
    site.held.check()
    assert len(site.slept) == 3
    site.change(paused_until=NOW + site.now + 500.0, holder="host 2")
    with pytest.raises(RunLost):
        site.held.check()
    assert len(site.slept) == 3


def test_a_spent_budget_counts_what_processes_before_had_used() -> None:
    site = Site(processor_s=110.0)
    site.now, site.processor = site.now + 100.0, site.processor + 10.0
    site.held.check()
    site.processor += 0.1
    with pytest.raises(BudgetSpent):
        site.held.check()


def test_a_store_that_is_away_does_not_end_it() -> None:
    site = Site()
    site.database.failing = {"read": "gone"}
    site.held.check()
