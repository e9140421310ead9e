"""Which pool a request is for."""

from dataclasses import replace
from typing import Any

import pytest

from prolepsis.adapters.upstream.route import UpstreamRoute, route_of
from prolepsis.core.plan import DisabledProposer, SpecPlan
from prolepsis.core.reasons import EffectiveReason
from prolepsis.core.requests import SamplingParams, SpeculationChoice
from prolepsis.engine.drafting.ledger import DisabledProposers, Ledger
from tests.adapters.upstream.fakes import DEPTH, request

PLAN = SpecPlan(num_speculative_tokens=DEPTH)
CLASS = "completions/standard/free/short"


def routed(plan: SpecPlan = PLAN, *, depth: int = DEPTH, **choice: Any) -> UpstreamRoute:
    params = choice.pop("params", None)
    asked = request(
        params=params,
        speculation=SpeculationChoice(**choice),
        traffic_class=CLASS,
        kill_scopes=frozenset({"tenant:bank"}),
    )
    return route_of(asked, plan, "vllm", depth, DisabledProposers(Ledger(("upstream",))))


@pytest.mark.parametrize("mode", ["auto", "on"])
def test_a_request_that_may_speculate_is_for_the_speculating_pool(mode: Any) -> None:
    assert routed(mode=mode) == UpstreamRoute("speculating", "speculating")
    assert routed(mode=mode).pools == ("speculating", "plain")


def disabled(num_trials: int = 0, proposer: str = "upstream", traffic_class: str = CLASS) -> SpecPlan:
    return SpecPlan(num_speculative_tokens=DEPTH, disabled=(DisabledProposer(proposer, traffic_class, num_trials),))


@pytest.mark.parametrize(
    ("route", "reason"),
    [
        (routed(mode="off", off_reason="rule_off", may_fall_back=True), "rule_off"),
        (routed(num_speculative_tokens=DEPTH - 1, may_fall_back=True), "plain_only"),
        (routed(mode="shadow", may_fall_back=True), "plain_only"),
        (routed(params=SamplingParams(min_p=0.1)), "plain_only"),
        (routed(proposers=("suffix",)), "no_draft"),
        (routed(depth=0), "no_draft"),
        (routed(SpecPlan(num_speculative_tokens=0)), "plan_off"),
        (routed(SpecPlan(num_speculative_tokens=0, reason="overload_plain")), "overload_plain"),
        (routed(SpecPlan(num_speculative_tokens=1, reason="overload_shallow")), "plain_only"),
    ],
)
def test_others_are_for_the_plain_pool_and_may_go_to_the_other_one(
    route: UpstreamRoute, reason: EffectiveReason
) -> None:
    assert route == UpstreamRoute("plain", reason)
    assert route.pools == ("plain", "speculating")


@pytest.mark.parametrize(
    ("route", "reason"),
    [
        (routed(mode="off", off_reason="rule_off"), "rule_off"),
        (routed(mode="off", off_reason="flag_off"), "flag_off"),
        (routed(mode="off"), "requested_off"),
        (routed(num_speculative_tokens=0), "requested_off"),
        (routed(num_speculative_tokens=DEPTH - 1), "plain_only"),
        (routed(mode="shadow"), "plain_only"),
        (routed(SpecPlan(num_speculative_tokens=0, reason="killed")), "killed"),
        (routed(SpecPlan(num_speculative_tokens=DEPTH, killed=frozenset({"tenant:bank"}))), "killed"),
        (routed(SpecPlan(num_speculative_tokens=DEPTH, killed=frozenset({"proposer:upstream"}))), "killed"),
        (routed(SpecPlan(num_speculative_tokens=DEPTH, stopped=frozenset({"r#1"})), rollout_run="r#1"), "rolled_back"),
        (routed(disabled()), "breaker_open"),
        (routed(mode="off", off_reason="rolled_back"), "rolled_back"),
        (routed(SpecPlan(num_speculative_tokens=0, reason="killed"), mode="off", off_reason="flag_off"), "flag_off"),
        (routed(SpecPlan(killed=frozenset({"tenant:bank"})), mode="off", off_reason="rule_off"), "rule_off"),
        (routed(SpecPlan(killed=frozenset({"proposer:upstream"})), mode="off"), "requested_off"),
        (routed(disabled(), mode="off", off_reason="rule_off"), "rule_off"),
        (routed(disabled(), mode="shadow"), "breaker_open"),
    ],
)
def test_what_is_pinned_or_stopped_never_goes_to_the_speculating_pool(
    route: UpstreamRoute, reason: EffectiveReason
) -> None:
    assert (route.pool, route.reason) == ("plain", reason)
    assert route.pools == ("plain",)


def test_a_breaker_that_found_bad_drafts_refuses_no_request_and_counts_for_its_tenants() -> None:
    bad = DisabledProposer("upstream", CLASS, compared=True, tenants=frozenset({"bank"}))
    route = routed(SpecPlan(num_speculative_tokens=DEPTH, disabled=(bad,)))
    assert (route.reason, route.pools) == ("breaker_open", ("plain", "speculating"))
    others = SpecPlan(num_speculative_tokens=DEPTH, disabled=(replace(bad, tenants=frozenset({"shop"})),))
    assert routed(others).pool == "speculating"


def test_a_breaker_counts_for_its_proposer_and_class_and_probes_pass_it() -> None:
    for plan in (
        disabled(num_trials=8),
        disabled(proposer="suffix"),
        disabled(traffic_class="other/standard/free/short"),
    ):
        assert routed(plan).pool == "speculating"
