"""One rollout while it is served: who gets what, what counts, and when quantiles can be judged."""

import random
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prolepsis.control.rollout.live import (
    LiveRollout,
    RolloutTarget,
    arm_of,
    step_with_references,
    stopped_runs,
    targets_of,
)
from prolepsis.control.rollout.machine import RolloutState
from prolepsis.control.rollout.settings import RolloutSettings, settings_of, stages
from prolepsis.control.statistics.guardrail import Guardrail
from prolepsis.control.statistics.means import Limit, MeanDifference
from prolepsis.control.statistics.quantiles import QuantileRatio
from prolepsis.core.ended import Assignment
from tests.control.policy.policies import policy

TAKEN = Guardrail(name="taken", metric="acceptance", measure=Limit(limit=0.3, num_points=33), better="higher")
SLOW = Guardrail(name="slow", metric="latency_ms", measure=QuantileRatio(level=0.5, margin=0.1))
ERRORS = Guardrail(name="errors", metric="error", measure=MeanDifference(margin=0.1))
SETTINGS = RolloutSettings(
    stages=stages((TAKEN, SLOW, ERRORS), shares=(0.2, 0.5), shadow_guardrails=(TAKEN,)), holdout=0.1
)
OFF = RolloutState("code@1", policy_version="p")
VALUES = {"acceptance": 0.6, "latency_ms": 100.0, "error": 0.0}


def live_in(state: RolloutState) -> LiveRollout:
    return LiveRollout(RolloutTarget("code@1", "code", SETTINGS, starts_itself=False), state)


def in_stage(stage: int) -> RolloutState:
    return replace(OFF, version=2, run=1, phase="running", stage=stage)


@pytest.mark.parametrize(
    ("state", "modes"),
    [
        (OFF, {"unassigned": "off", "holdout": "off"}),
        (in_stage(0), {"canary": "shadow", "holdout": "off"}),
        (in_stage(1), {"canary": "on", "unassigned": "off", "holdout": "off"}),
        (replace(in_stage(1), phase="held"), {"canary": "on", "unassigned": "off", "holdout": "off"}),
        (replace(in_stage(2), phase="on"), {"canary": "on", "holdout": "off"}),
        (replace(in_stage(2), phase="rolled_back"), {"unassigned": "off", "holdout": "off"}),
    ],
)
def test_arms_and_modes_of_requests(state: RolloutState, modes: dict[str, str]) -> None:
    settings = replace(SETTINGS, stages=(replace(SETTINGS.stages[0], share=0.9), *SETTINGS.stages[1:]))
    live = LiveRollout(RolloutTarget("code@1", "code", settings, starts_itself=False), state)
    assignments = [live.assign(f"r{i}") for i in range(300)]
    assert {assignment.arm: assignment.mode for assignment in assignments} == modes
    assert {assignment.is_rolled_back for assignment in assignments} == {state.phase == "rolled_back"}


def test_later_measurements_count_for_the_arm_without_counting_another_request() -> None:
    live, canary, control = (
        live_in(in_stage(1)),
        Assignment("code@1", 1, 1, "canary", "on"),
        Assignment("code@1", 1, 1, "unassigned", "off"),
    )
    live.observe(canary, {})
    live.observe(canary, {"error": 1.0}, late=True)
    live.observe(control, {"error": 0.0}, late=True)
    live.observe(replace(canary, stage=0), {"error": 1.0}, late=True)
    arms = live.evidence.scores_of(ERRORS).total
    assert (arms.canary.count, arms.canary.mean, arms.control.count) == (1, 1.0, 1)
    assert (live.evidence.num_canary, live.evidence.num_control) == (1, 0)
    assert live.histories["error"].count == 1, "plain requests are what later stages refer to"


def test_a_request_counts_for_the_stage_it_came_in() -> None:
    live = live_in(in_stage(1))
    early = Assignment("code@1", 1, 1, "canary", "on")
    live.observe(early, VALUES)
    assert live.evidence.num_canary == 1
    live.take(in_stage(2))
    live.observe(early, VALUES)
    assert live.evidence.num_canary == 0
    live.observe(Assignment("code@1", 1, 2, "unassigned", "off"), VALUES)
    assert (live.evidence.num_canary, live.evidence.num_control) == (0, 1)
    live.take(replace(in_stage(2), phase="held", version=9))
    assert live.evidence.num_control == 1
    live.take(replace(in_stage(2), run=2))
    assert live.evidence.num_control == 0


def test_in_shadow_only_those_count_that_draft() -> None:
    live = live_in(in_stage(0))
    live.observe(Assignment("code@1", 1, 0, "canary", "shadow"), VALUES)
    live.observe(Assignment("code@1", 1, 0, "unassigned", "off"), VALUES)
    assert (live.evidence.num_canary, live.evidence.num_control) == (1, 0)


def test_quantiles_are_judged_by_what_the_control_showed_before() -> None:
    live = live_in(in_stage(1))
    plain = Assignment("code@1", 1, 1, "unassigned", "off")
    for i in range(SLOW.measure.reference_requests - 1):
        live.observe(plain, VALUES)
        if i % 4 == 0:
            live.observe(Assignment("code@1", 1, 1, "canary", "on"), VALUES)
    assert step_with_references(live.state, live.evidence, live.histories, 1.0, SETTINGS) == (live.state, ())
    live.observe(plain, VALUES)
    after, events = step_with_references(live.state, live.evidence, live.histories, 1.0, SETTINGS)
    assert (after.version, events) == (live.state.version + 1, ())
    assert after.references == {"slow": pytest.approx(100.0, rel=0.02)}  # errors were counted without one
    counted = live.evidence.num_control
    live.take(after)
    assert live.evidence.num_control == counted
    live.observe(Assignment("code@1", 1, 1, "canary", "on"), VALUES)
    assert live.evidence.scores_of(SLOW).total.canary.count == 1


@pytest.mark.parametrize(("factor", "phase"), [(0.7, "on"), (1.6, "rolled_back")])
def test_a_canary_is_judged_by_what_a_token_costs(factor: float, phase: str) -> None:
    text = """
default:
  mode: on
  rollout: {stages: 50, gate: automatic, min_stage_s: 0, holdout: 50}
  guardrails: [{name: cost, metric: cost_per_token, margin: 0.1}]
"""
    terms = policy(text).default_terms
    assert terms.rollout is not None
    settings = settings_of(terms)
    live = LiveRollout(RolloutTarget("code@1", "code", settings, starts_itself=True), in_stage(0))
    draw = random.Random(1)
    for number in range(3000):
        assignment = live.assign(f"r{number}")
        cost = draw.lognormvariate(2.0, 0.4) * (factor if assignment.arm == "canary" else 1.0)
        live.observe(assignment, {"device_ms_per_token": cost})
        if number % 50 == 0:
            live.take(step_with_references(live.state, live.evidence, live.histories, 1.0, settings)[0])
    assert live.state.phase == phase


def test_a_rollback_stops_the_run_in_the_engine() -> None:
    assert stopped_runs(in_stage(1), replace(in_stage(1), phase="rolled_back")) == ("code@1#1",)
    assert stopped_runs(in_stage(1), replace(in_stage(0), run=2)) == ("code@1#1",)
    assert stopped_runs(in_stage(1), in_stage(2)) == ()
    assert stopped_runs(OFF, in_stage(0)) == ()


def test_evidence_of_other_replicas_of_the_same_stage_is_added() -> None:
    one, other = live_in(in_stage(1)), live_in(in_stage(1))
    for live in (one, other):
        live.observe(Assignment("code@1", 1, 1, "canary", "on"), VALUES)
    one.others = (other.evidence, live_in(in_stage(0)).evidence)
    assert one.all_evidence(0.0).num_canary == 2


def test_a_request_costs_control_little() -> None:
    live = live_in(replace(in_stage(1), references={"slow": 100.0}))
    since = time.thread_time()
    for i in range(200):
        live.observe(live.assign(f"r{i}"), VALUES)
    assert (time.thread_time() - since) / 200 < 0.0005


def test_a_rule_is_a_traffic_class_by_what_it_says_and_for_which_model() -> None:
    text = "rules: [{{name: a, match: {{tier: {tier}}}, mode: on, rollout: {{}}}}, {{name: b, match: {{n: 2}}}}]"
    before = targets_of(policy(text.format(tier="x")), "m")
    assert set(before) == {"a"}
    assert before["a"].rollout_id.startswith("a@")
    assert targets_of(policy("version: 2\n" + text.format(tier="x")), "m") == before
    assert targets_of(policy(text.format(tier="y")), "m")["a"].rollout_id != before["a"].rollout_id
    assert targets_of(policy(text.format(tier="x")), "m2")["a"].rollout_id != before["a"].rollout_id


KEYS = [f"request-{i}" for i in range(20_000)]


@given(st.text("ab-1é"), st.text("r2"), st.floats(0.0, 0.5), st.floats(0.0, 0.4))
def test_requests_on_the_canary_stay_there_as_it_grows(key: str, rollout: str, share: float, more: float) -> None:
    small, large = arm_of(key, rollout, share), arm_of(key, rollout, share + more)
    assert small != "canary" or large == "canary"
    assert (small == "holdout") == (large == "holdout")


@pytest.mark.parametrize(("canary", "holdout"), [(0.01, 0.05), (0.25, 0.05), (0.95, 0.05), (0.5, 0.5), (0.0, 0.0)])
def test_arms_have_their_shares(canary: float, holdout: float) -> None:
    arms = [arm_of(key, "r", canary, holdout) for key in KEYS]
    for arm, share in (("canary", canary), ("holdout", holdout)):
        deviation = (share * (1 - share) / len(KEYS)) ** 0.5
        assert abs(arms.count(arm) / len(KEYS) - share) <= 4 * deviation  # type: ignore[arg-type]


def test_another_rollout_assigns_arms_independently() -> None:
    first, second = ({k for k in KEYS if arm_of(k, r, 0.2) == "canary"} for r in ("a", "b"))
    assert abs(len(first & second) / len(KEYS) - 0.04) < 0.006


def test_an_arm_is_the_same_on_every_machine() -> None:
    assert [arm_of(f"k{i}", "r", 0.5, 0.25) for i in range(8)] == EXPECTED


def test_shares_are_together_at_most_one() -> None:
    with pytest.raises(AssertionError, match="together"):
        arm_of("k", "r", 0.96, 0.05)


EXPECTED = ["holdout", "canary", "holdout", "unassigned", "canary", "canary", "holdout", "unassigned"]
