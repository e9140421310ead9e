from prolepsis.control.controls.effective_plan import EffectivePlan
from prolepsis.core.kill_scope import EVERYTHING
from prolepsis.core.plan import DisabledProposer, SpecPlan
from prolepsis.server.admission.load_shedding import PLAIN, SHALLOW, plan_at

BASE = SpecPlan(version=3, num_speculative_tokens=8)
OUT = (DisabledProposer("head", "chat"),)


def test_each_has_its_say_and_the_kill_switch_the_last_word() -> None:
    applied: list[SpecPlan] = []
    plan = EffectivePlan(BASE, applied.append)
    plan.disable(OUT)
    plan.shed(plan_at(SHALLOW, BASE, 99))
    plan.kill(frozenset({EVERYTHING, "tenant:bank"}))
    plan.shed(plan_at(PLAIN, BASE, 99))
    plan.disable(())
    plan.kill(frozenset({"tenant:bank"}))
    assert applied[-1].killed == {"tenant:bank"}
    plan.kill(frozenset())
    assert [(p.version, p.num_speculative_tokens, p.reason, p.disabled) for p in applied] == [
        (4, 8, "default", OUT),
        (5, 2, "overload_shallow", OUT),
        (6, 0, "killed", ()),
        (7, 0, "killed", ()),
        (8, 0, "killed", ()),
        (9, 0, "overload_plain", ()),
        (10, 0, "overload_plain", ()),
    ]


def test_no_plan_is_applied_without_a_change() -> None:
    applied: list[SpecPlan] = []
    plan = EffectivePlan(BASE, applied.append)
    plan.disable(())
    plan.kill(frozenset())
    assert applied == []
