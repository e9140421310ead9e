"""The plan that an engine applies: what later plans keep of earlier ones."""

from prolepsis.core.plan import MAX_STOPPED_RUNS, AppliedPlan, SpecPlan


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
