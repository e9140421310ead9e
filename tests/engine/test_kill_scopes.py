"""A kill by scope takes effect at the next step for requests in flight, for no others, and changes no token."""

from dataclasses import replace

import pytest

from prolepsis.core.kill_scope import kill_scope
from prolepsis.core.messages import ApplyPlan
from prolepsis.core.plan import SpecPlan
from prolepsis.core.requests import GenerateRequest, SpeculationChoice
from prolepsis.engine.step import Engine
from tests.engine.test_disabled_proposers import PARAMS, Named
from tests.fakes import EngineSetup, build, drain, outputs, request, run, submit, terminals

NUM_IN_FLIGHT = 16
SCOPES = {
    "tenant:bank": ("tenant:bank", "route:/v1/completions", "rule:fast", "traffic_class:a/b/free/short"),
    "tenant:shop": ("tenant:shop", "route:/v1/chat/completions", "rule:safe", "traffic_class:c/d/free/short"),
}


def of_tenant(tenant: str, i: int, mode: SpeculationChoice | None = None) -> GenerateRequest:
    source = request(f"{tenant}-{i}", [1, 2, 3 + i], PARAMS)
    scopes = frozenset(SCOPES[f"tenant:{tenant}"])
    return replace(source, kill_scopes=scopes, speculation=mode or SpeculationChoice())


def engine_with(*proposers: Named) -> Engine:
    engine = build(EngineSetup(num_pages=256, max_sequences=64, max_step_tokens=512, proposers=proposers))
    apply(engine)
    return engine


def apply(engine: Engine, *killed: str) -> None:
    engine.send(ApplyPlan(SpecPlan(fixed_depth=3, killed=frozenset(killed))))


def num_drafts(engine: Engine, tenant: str) -> dict[str, int]:
    live = engine.scheduler.requests
    return {name: one.stats.num_drafts for name, one in live.items() if name.startswith(tenant)}


@pytest.mark.parametrize("scope", SCOPES["tenant:bank"])
def test_those_in_flight_draft_nothing_from_the_next_step_on_and_others_go_on(scope: str) -> None:
    sources = [of_tenant(tenant, i) for tenant in ("bank", "shop") for i in range(NUM_IN_FLIGHT)]
    plain = outputs(run(build(EngineSetup(num_pages=256, max_sequences=64, max_step_tokens=512)), *sources))
    engine = engine_with(Named("first"))
    submit(engine, *sources)
    events = [event for _ in range(4) for event in engine.step()]
    bank, shop = num_drafts(engine, "bank"), num_drafts(engine, "shop")
    assert len(bank) == len(shop) == NUM_IN_FLIGHT
    assert min(*bank.values(), *shop.values()) > 0
    apply(engine, scope)
    for steps in (1, 2, 3):
        events += engine.step()
        assert num_drafts(engine, "bank") == bank
        assert num_drafts(engine, "shop") == {name: count + steps for name, count in shop.items()}
    events += drain(engine)
    assert outputs(events) == plain
    reasons = {name: ended.stats.mode.reason for name, ended in terminals(events).items()}
    assert {reason for name, reason in reasons.items() if name.startswith("bank")} == {"killed"}
    assert {reason for name, reason in reasons.items() if name.startswith("shop")} == {"speculating"}


def test_a_killed_proposer_drafts_for_no_request_and_the_next_one_takes_its_place() -> None:
    first, second = Named("first"), Named("second")
    engine = engine_with(first, second)
    submit(engine, of_tenant("bank", 0), of_tenant("shop", 0))
    events = [event for _ in range(3) for event in engine.step()]
    apply(engine, kill_scope("proposer", "first"))
    events += engine.step()
    asked = len(first.asked)
    events += drain(engine)
    assert len(first.asked) == asked
    assert {ended.stats.mode.reason for ended in terminals(events).values()} == {"speculating"}
    assert all(ended.stats.proposers["second"].num_drafts > 0 for ended in terminals(events).values())


def test_all_proposers_killed_is_a_reason_of_its_own() -> None:
    engine = engine_with(Named("first"))
    apply(engine, kill_scope("proposer", "first"))
    only = SpeculationChoice(proposers=("first",))
    (ended,) = terminals(run(engine, of_tenant("bank", 0, only))).values()
    assert (ended.stats.mode.mode, ended.stats.mode.reason) == ("off", "killed")


def test_a_scope_that_is_allowed_again_drafts_again() -> None:
    engine = engine_with(Named("first"))
    apply(engine, "tenant:bank")
    submit(engine, of_tenant("bank", 0))
    for _ in range(3):
        engine.step()
    assert num_drafts(engine, "bank") == {"bank-0": 0}
    apply(engine)
    assert terminals(drain(engine))["bank-0"].stats.mode.reason == "speculating"


def test_requests_without_speculation_keep_their_own_reason() -> None:
    engine = engine_with(Named("first"))
    apply(engine, "tenant:bank")
    (ended,) = terminals(run(engine, of_tenant("bank", 0, SpeculationChoice("off")))).values()
    assert ended.stats.mode.reason == "requested_off"
