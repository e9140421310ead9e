"""Who wins where: policy or caller."""

from dataclasses import replace

import pytest

from prolepsis.control.health.eligibility import UNLIMITED
from prolepsis.control.policy.decision import UNSTATED, SpeculationRequest, conflict, decide, decide_alone
from prolepsis.control.policy.model import DEFAULT_RULE, InsideTerms, PartTerms, TargetTerms, Terms
from prolepsis.core.ended import AssignedArm, Assignment
from prolepsis.core.reasons import OffReason
from prolepsis.core.requests import LatencyTarget, SpecMode
from prolepsis.core.stats import Mode


@pytest.mark.parametrize(
    ("given", "requested", "mode", "source"),
    [
        ("off", "auto", "off", "policy"),
        ("shadow", "auto", "shadow", "policy"),
        ("on", "auto", "auto", "policy"),
        ("on", "off", "off", "caller"),
        ("shadow", "off", "off", "caller"),
        ("off", "always", "always", "caller"),
        ("on", "always", "always", "caller"),
        ("on", "shadow", "shadow", "caller"),
    ],
)
def test_the_mode(given: Mode, requested: SpecMode, mode: SpecMode, source: str) -> None:
    decision = decide("r", Terms(mode=given), SpeculationRequest(mode=requested))
    assert (decision.choice.mode, decision.sources["mode"]) == (mode, source)


@pytest.mark.parametrize(
    ("ceiling", "depth", "num"), [(8, 4, 4), (8, 16, 8), (None, 4, 4), (8, None, 8), (None, None, None)]
)
def test_the_ceiling_holds_for_every_caller(ceiling: int | None, depth: int | None, num: int | None) -> None:
    decision = decide("r", Terms(mode="on", num_speculative_tokens=ceiling), SpeculationRequest(max_depth=depth))
    assert decision.choice.num_speculative_tokens == num


@pytest.mark.parametrize(
    ("rule", "arm", "is_rolled_back", "requested", "reason"),
    [
        ("chat", None, False, UNSTATED, "rule_off"),
        (DEFAULT_RULE, None, False, UNSTATED, "no_rule"),
        ("chat", "control", False, UNSTATED, "not_drawn"),
        ("chat", "unassigned", False, UNSTATED, "not_drawn"),
        (DEFAULT_RULE, "control", False, UNSTATED, "not_drawn"),
        ("chat", "unassigned", True, UNSTATED, "rolled_back"),
        ("chat", "unassigned", True, SpeculationRequest("off"), "requested_off"),
        ("chat", "unassigned", True, SpeculationRequest(max_depth=0), "rolled_back"),
    ],
)
def test_the_reason_says_if_the_rule_is_off_if_none_matched_if_it_was_not_drawn_or_came_after_a_rollback(
    rule: str, arm: AssignedArm | None, is_rolled_back: bool, requested: SpeculationRequest, reason: OffReason
) -> None:
    assignment = None if arm is None else Assignment("r@1", 1, 1, arm, "off", is_rolled_back=is_rolled_back)
    choice = decide(rule, Terms(mode="off" if arm is None else "on"), requested, assignment=assignment).choice
    assert (choice.mode, choice.off_reason) == ("off", reason)


def test_depth_0_turns_it_off() -> None:
    for requested in (SpeculationRequest(max_depth=0), SpeculationRequest("always", max_depth=0)):
        decision = decide("r", Terms(mode="on"), requested)
        assert (decision.choice.mode, decision.choice.off_reason) == ("off", "requested_off")
        assert decision.sources["mode"] == "caller"


@pytest.mark.parametrize(
    ("arm", "requested", "may"),
    [("control", UNSTATED, True), ("control", SpeculationRequest("off"), False), (None, UNSTATED, False)],
)
def test_only_what_a_rollout_compares_may_be_served_by_what_speculates(
    arm: str | None, requested: SpeculationRequest, may: bool
) -> None:
    assignment = Assignment("r@1", 1, 1, "unassigned", "off") if arm else None
    choice = decide("r", Terms(mode="on" if arm else "off"), requested, assignment=assignment).choice
    assert (choice.mode, choice.may_fall_back) == ("off", may)


@pytest.mark.parametrize(("start", "may"), [(None, False), (8, False), (2, True)])
def test_only_the_ceiling_of_a_careful_start_may_be_passed(start: int | None, may: bool) -> None:
    limits, assignment = replace(UNLIMITED, num_speculative_tokens=start), Assignment("r@1", 1, 1, "canary", "on")
    terms = Terms(mode="on", num_speculative_tokens=4)
    for assigned in (None, assignment):
        assert decide("r", terms, UNSTATED, assignment=assigned, limits=limits).choice.may_fall_back == may


def test_proposers_are_narrowed_never_widened() -> None:
    terms = Terms(mode="on", proposers=("suffix", "grammar"))
    assert decide("r", terms, SpeculationRequest(proposer="suffix")).choice.proposers == ("suffix",)
    assert decide("r", terms, UNSTATED).choice.proposers == ("suffix", "grammar")
    against = conflict("r", terms, SpeculationRequest(proposer="draft_head"))
    assert against is not None
    assert (against.param, "'r': suffix, grammar" in against.message) == ("speculation.proposer", True)
    assert conflict("r", Terms(mode="on"), SpeculationRequest(proposer="draft_head")) is None


def test_terms_of_a_part_of_the_answer_narrow_what_rule_and_caller_allow() -> None:
    inside = InsideTerms(
        call=PartTerms(proposers=("grammar",), num_speculative_tokens=8), text=PartTerms(num_speculative_tokens=2)
    )
    terms = Terms(mode="on", proposers=("suffix", "grammar"), inside=inside)

    def parts(requested: SpeculationRequest = UNSTATED) -> list[tuple[str, tuple[str, ...] | None, int | None]]:
        choice = decide("r", terms, requested).choice
        return [(part.mode, part.proposers, part.num_speculative_tokens) for part in choice.inside or ()]

    assert parts() == [("auto", ("grammar",), 8), ("auto", ("suffix", "grammar"), 2)]
    assert parts(SpeculationRequest(max_depth=4)) == [("auto", ("grammar",), 4), ("auto", ("suffix", "grammar"), 2)]
    assert [mode for mode, *_ in parts(SpeculationRequest(mode="always"))] == ["always", "always"]
    call, text = parts(SpeculationRequest(proposer="suffix"))
    assert (call[0], text) == ("off", ("auto", ("suffix",), 2)), "the caller's proposer may draft in text alone"
    assert parts(SpeculationRequest(mode="off")) == []
    off = decide("r", Terms(mode="on", inside=InsideTerms(text=PartTerms(mode="off"))), UNSTATED).choice
    assert off.inside is not None
    assert (off.mode, off.inside[0], off.inside[1].off_reason) == ("auto", replace(off, inside=None), "rule_off")


def test_emit_is_the_callers_where_one_is_given() -> None:
    assert decide("r", Terms(mode="on", emit="token"), UNSTATED).emit == "token"
    assert decide("r", Terms(mode="on", emit="token"), SpeculationRequest(emit="block")).emit == "block"
    assert decide("r", Terms(mode="on"), SpeculationRequest(emit="token")).emit == "token"


@pytest.mark.parametrize(
    ("mode", "requested", "param"),
    [
        ("off", SpeculationRequest("always"), "speculation.mode"),
        ("off", SpeculationRequest("shadow"), "speculation.mode"),
        ("on", SpeculationRequest("off"), "speculation.mode"),
        ("on", SpeculationRequest("always"), "speculation.mode"),  # it would force what does not pay
        ("on", SpeculationRequest(max_depth=0), "speculation.max_depth"),
        ("shadow", SpeculationRequest(max_depth=0), "speculation.max_depth"),
        ("off", SpeculationRequest(emit="token"), "speculation.emit"),
        ("off", SpeculationRequest("off"), None),
        ("off", SpeculationRequest(max_depth=0), None),
        ("shadow", SpeculationRequest("shadow"), None),
        ("on", SpeculationRequest("auto", max_depth=2), None),
        ("off", SpeculationRequest(emit="block"), None),
    ],
)
def test_a_pinned_rule_is_refused_not_overridden(mode: Mode, requested: SpeculationRequest, param: str | None) -> None:
    against = conflict("r", Terms(mode=mode, pinned=True), requested)
    assert (against.param if against else None) == param
    assert conflict("r", Terms(mode=mode), requested) is None


def test_a_share_drafts_in_shadow_and_a_larger_one_holds_it() -> None:
    keys = [f"request-{i}" for i in range(4000)]

    def drawn(percentage: float, rule: str = "r") -> set[str]:
        terms = Terms(mode="shadow", shadow_percentage=percentage)
        return {key for key in keys if decide(rule, terms, UNSTATED, key).choice.mode == "shadow"}

    assert drawn(0) == set()
    assert len(drawn(100)) == len(keys)
    ten, thirty = drawn(10), drawn(30)
    assert 400 - 80 < len(ten) < 400 + 80  # four standard deviations: 4 sqrt(4000 * 0.1 * 0.9) = 76
    assert ten < thirty
    assert len(ten & drawn(10, "another")) < 100  # drawn apart: 40 expected
    assert (
        decide("r", Terms(mode="shadow", shadow_percentage=0), UNSTATED).choice.mode == "shadow"
    )  # no key, nothing drawn
    decision = decide("r", Terms(mode="shadow", shadow_percentage=0), UNSTATED, "k")
    assert (decision.choice.mode, decision.choice.off_reason) == ("off", "not_drawn")
    assert decision.sources["mode"] == "shadow_percentage"
    assert (
        decide("r", Terms(mode="shadow", shadow_percentage=0), SpeculationRequest("shadow"), "k").choice.mode
        == "shadow"
    )


def test_a_request_states_its_target_and_the_rule_gives_what_it_leaves_out() -> None:
    by_rule = decide("r", Terms(mode="on", target=TargetTerms(ms_per_token=20.0, first_token_ms=500.0)), UNSTATED)
    assert by_rule.target(None) == LatencyTarget(20.0, 500.0)
    assert by_rule.target(LatencyTarget(5.0)) == LatencyTarget(5.0, 500.0)
    alone = decide_alone(UNSTATED)
    assert alone.target(LatencyTarget(5.0)) == LatencyTarget(5.0)
    assert alone.target(LatencyTarget()) is None
