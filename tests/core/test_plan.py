"""The plan that an engine applies: what later plans keep of earlier ones."""

from dataclasses import replace

from prolepsis.core.plan import (
    KILLED,
    MAX_STOPPED_RUNS,
    PANIC_PLAN,
    AppliedPlan,
    DisabledProposer,
    SpecPlan,
    strictest,
)


def test_stopped_runs_stay_stopped_over_later_plans() -> None:
    applied = AppliedPlan(SpecPlan(stopped=frozenset({"a#1"})))
    applied.stop("b#1")
    applied.apply(SpecPlan(version=2, stopped=frozenset({"c#1"})))
    assert applied.current == SpecPlan(version=2, stopped=frozenset({"a#1", "b#1", "c#1"}))


def test_stopping_a_run_changes_nothing_else() -> None:
    applied = AppliedPlan(SpecPlan(version=3, fixed_depth=2))
    applied.stop("a#1")
    assert applied.current == SpecPlan(version=3, fixed_depth=2, stopped=frozenset({"a#1"}))


def test_the_runs_that_were_stopped_first_are_forgotten_first() -> None:
    applied = AppliedPlan()
    for i in range(MAX_STOPPED_RUNS + 10):
        applied.stop(f"run#{i}")
    assert applied.current.stopped == {f"run#{i}" for i in range(10, MAX_STOPPED_RUNS + 10)}


def test_the_strictest_of_plans_stops_what_each_of_them_stops() -> None:
    probed = DisabledProposer("suffix", "code", num_trials=4, trial_round=1)
    first = SpecPlan(version=7, killed=frozenset({"tenant:a"}), disabled=(probed,), proposers=("suffix", "prediction"))
    last = SpecPlan(version=3, num_speculative_tokens=2, killed=frozenset({"tenant:b"}), proposers=("suffix",))
    both = replace(last, killed=frozenset({"tenant:a", "tenant:b"}), disabled=(probed,))
    assert strictest([first, last]) == both
    assert strictest([last, first]) == replace(both, version=7)
    assert strictest([first]) == replace(first, proposers=("prediction", "suffix"))


def test_a_plan_that_is_killed_stays_killed_beside_one_that_drafts_as_little() -> None:
    killed, shed = replace(PANIC_PLAN, reason=KILLED), SpecPlan(version=9, num_speculative_tokens=0, reason="overload")
    for plans in ([killed, shed], [shed, killed]):
        assert strictest(plans).reason == KILLED
