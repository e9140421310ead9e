"""What an engine that is started later is told."""

from prolepsis.core.plan import PANIC_PLAN
from prolepsis.engine.client import HeadSwapped
from prolepsis.failover.controls import Controls
from tests.failover.speaking import Speaker


async def test_plan_runs_and_heads_are_told_again() -> None:
    controls, engine = Controls(), Speaker()
    controls.plan = PANIC_PLAN
    controls.stopped |= {"run#1": None, "run#2": None}
    controls.swapped("mine@champion", "draft_head", HeadSwapped(None, "mine@4", 7))
    controls.swapped("none", "candidate_head", HeadSwapped("other@1", None, 8))
    await controls.bring_up_to_date(engine)
    assert (engine.plans, engine.stopped) == ([PANIC_PLAN], ["run#1", "run#2"])
    assert engine.swaps == ["mine@4", "none"], "the version, whatever the alias stands for by now"


async def test_a_folder_is_remembered_as_such() -> None:
    controls, engine = Controls(), Speaker()
    controls.swapped("./heads/mine", "draft_head", HeadSwapped(None, "mine@4", 7))
    await controls.bring_up_to_date(engine)
    assert engine.swaps == ["./heads/mine"]


async def test_a_head_that_is_gone_costs_no_engine() -> None:
    controls, engine = Controls(), Speaker()
    controls.swapped("broken@1", "draft_head", HeadSwapped(None, "broken@1", 7))
    controls.swapped("good@1", "candidate_head", HeadSwapped(None, "good@1", 8))
    await controls.bring_up_to_date(engine)
    assert engine.swaps == ["good@1"]


async def test_without_orders_nothing_is_told() -> None:
    engine = Speaker()
    await Controls().bring_up_to_date(engine)
    assert (engine.plans, engine.stopped, engine.swaps) == ([], [], [])
