"""Rollouts against a control that drafts too; evidence belongs to the versions of the heads that were used."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from prolepsis.control.health.eligibility import DraftLimits
from prolepsis.control.policy.check import Known, check
from prolepsis.control.policy.decision import UNSTATED, Decision
from prolepsis.control.policy.model import Policy, Terms
from prolepsis.control.policy.runtime import Policies
from prolepsis.control.policy.source import GivenPolicy
from prolepsis.control.rollout.live import targets_of
from prolepsis.control.rollout.runtime import Rollouts
from prolepsis.control.rollout.store import RolloutStore
from prolepsis.core.config import CANDIDATE_HEAD, DRAFT_HEAD, LEARNT_HEAD
from prolepsis.core.ended import Assignment
from prolepsis.core.facts import RequestFacts
from tests.control.health.ended import ended
from tests.control.policy.policies import policy
from tests.control.rollout.rollout import memory_store

RULE = """
    rules:
      - name: chat
        match: {{}}
        mode: on
        proposers: [candidate_head]
        num_speculative_tokens: 8
        rollout: {{stages: [50], holdout: 10, gate: automatic, min_stage_s: 0, against: {0}}}
        guardrails: [{{name: far, metric: acceptance_length, margin: 0.1}}]
"""
DEPTH, HEAD = "{num_speculative_tokens: 4}", "{proposers: [draft_head]}"


class Site:
    """Rollouts of a rule against other terms, with versions of heads and a clock set by hand."""

    def __init__(self, against: str, store: RolloutStore | None = None, *, held: Policy | None = None) -> None:
        self.now = 1000.0
        self.versions = {DRAFT_HEAD: "mine@3", CANDIDATE_HEAD: "mine@4", LEARNT_HEAD: ""}
        self.rollouts = Rollouts(
            store or memory_store(),
            lambda run: None,
            CollectorRegistry(),
            model="tiny",
            weights_of=lambda proposer: self.versions[proposer],
            has_head=lambda proposer: bool(self.versions[proposer]),
            clock=lambda: self.now,
        )
        self.source = GivenPolicy(held or policy(RULE.format(against)))
        self.policies = Policies(self.source, (), self.rollouts)

    async def tick(self, seconds: float = 1.0) -> None:
        self.now += seconds
        await self.rollouts.tick()

    def decide(self, number: int, ineligible: Sequence[str] = ()) -> Decision:
        def limits_of(terms: Terms, traffic_class: str) -> DraftLimits:
            is_eligible = set(terms.proposers or ()).isdisjoint(ineligible)
            return DraftLimits() if is_eligible else DraftLimits(("low_acceptance",), verifies=False)

        facts = RequestFacts(targeting_key=f"request-{number}")
        decision = self.policies.decide(UNSTATED, facts, limits_of=limits_of)
        assert isinstance(decision, Decision)
        return decision

    def observe(self, number: int, *, canary: float, control: float) -> None:
        for i in range(number):
            assignment = self.decide(i).assignment
            assert assignment is not None
            value = canary if assignment.arm == "canary" else control
            self.rollouts.observe(assignment, {"acceptance_length": value + 0.2 * (i % 2)})

    async def counted(self) -> int:
        [view] = await self.rollouts.views()
        return view.num_canary + view.num_control


@pytest.mark.parametrize(("against", "proposers", "depth"), [(DEPTH, (CANDIDATE_HEAD,), 4), (HEAD, (DRAFT_HEAD,), 8)])
async def test_the_control_has_its_own_terms_in_every_phase(
    against: str, proposers: tuple[str, ...], depth: int
) -> None:
    site = Site(against)
    incumbent = {("auto", proposers, depth, "")}

    def served() -> set[tuple[str, tuple[str, ...] | None, int | None, str]]:
        choices = [site.decide(i).choice for i in range(60)]
        return {(one.mode, one.proposers, one.num_speculative_tokens, one.rollout_run) for one in choices}

    assert served() == incumbent
    await site.tick()  # its gate is automatic
    [view] = await site.rollouts.views()
    assert view.against is not None
    assert served() == incumbent | {("auto", (CANDIDATE_HEAD,), 8, f"{view.id}#1")}
    assert all(site.decide(i).is_evidence for i in range(60))
    await site.rollouts.command(view.id, "rollback", "drill")
    assert served() == incumbent


@pytest.mark.parametrize(("canary", "phase"), [(1.4, "rolled_back"), (2.2, "on")])
async def test_the_canary_is_judged_against_the_control(canary: float, phase: str) -> None:
    site = Site(HEAD)
    await site.tick()
    for _ in range(12):
        site.observe(200, canary=canary, control=2.0)
        await site.tick()
    [view] = await site.rollouts.views()
    assert view.phase == phase


async def test_both_arms_wait_until_both_are_eligible() -> None:
    site = Site(HEAD)
    await site.tick()
    for ineligible in (CANDIDATE_HEAD, DRAFT_HEAD):
        decisions = [site.decide(i, [ineligible]) for i in range(40)]
        assert {one.choice.mode for one in decisions} == {"shadow"}
        assert not any(one.is_evidence for one in decisions)


async def test_evidence_never_crosses_versions() -> None:
    store = memory_store()
    site = Site(HEAD, store)
    await site.tick()
    site.observe(30, canary=2.0, control=2.0)
    assert await site.counted() == 30
    old = site.decide(1).assignment
    site.versions[CANDIDATE_HEAD] = "mine@5"
    assert isinstance(old, Assignment)
    site.rollouts.observe(old, {"acceptance_length": 2.0})
    assert await site.counted() == 0, "the first request that ends after the exchange shows it"
    new = site.decide(1).assignment
    assert await site.counted() == 0
    site.rollouts.observe(old, {"acceptance_length": 2.0})
    assert await site.counted() == 0, "it began with the old head"
    assert new is not None
    site.rollouts.observe(new, {"acceptance_length": 2.0})
    assert await site.counted() == 1
    await site.rollouts.close()
    [view] = await site.rollouts.views()
    assert view.weights == "mine@5, mine@3"


async def test_replicas_add_up_evidence_of_the_same_versions() -> None:
    store = memory_store()
    first = Site(HEAD, store)
    await first.tick()
    first.observe(30, canary=2.0, control=2.0)
    await first.rollouts.close()
    other = RolloutStore(store._database)
    same, another = Site(HEAD, other), Site(HEAD, RolloutStore(store._database))
    another.versions[DRAFT_HEAD] = "mine@2"
    await same.tick(0.0)
    await another.tick(0.0)
    assert await same.counted() == 30
    assert await another.counted() == 0


def test_a_rule_that_uses_no_head_keeps_its_evidence() -> None:
    text = "default: {{mode: on, proposers: {0}, rollout: {{}}}}"
    for proposers, heads in (("[suffix]", []), ("null", [DRAFT_HEAD]), ("[candidate_head]", [CANDIDATE_HEAD])):
        assert sorted(targets_of(policy(text.format(proposers)), "tiny")["default"].heads) == heads


@pytest.mark.parametrize(
    ("rollout", "said"),
    [
        ("{against: {proposers: [sufix]}}", "names 'sufix', which is unknown"),
        ("{against: {num_speculative_tokens: 8}}", "has the terms of the rule"),
    ],
)
def test_controls_that_mean_nothing_are_found(rollout: str, said: str) -> None:
    text = f"default: {{mode: on, num_speculative_tokens: 8, rollout: {rollout}}}"
    findings = check(policy(text), Known(proposers=("suffix", DRAFT_HEAD)))
    assert any(said in one.message for one in findings)


def test_a_margin_on_acceptance_length_needs_a_control_that_drafts() -> None:
    text = "default: {{mode: on, rollout: {0}, guardrails: [{{name: g, metric: acceptance_length, margin: 0.1}}]}}"
    assert check(policy(text.format("{against: {num_speculative_tokens: 4}}"))) == []
    [one] = check(policy(text.format("{}")))
    assert "which plain requests do not have" in one.message


def test_a_control_is_part_of_a_rollouts_identity_only_where_it_is_given() -> None:
    plain, deep = (
        targets_of(policy(f"default: {{mode: on, rollout: {given}}}"), "tiny")["default"].rollout_id
        for given in ("{}", "{against: {num_speculative_tokens: 4}}")
    )
    assert plain != deep


async def test_what_an_empty_slot_or_an_ineligible_arm_keeps_waiting_is_said() -> None:
    site = Site(HEAD)
    site.versions[CANDIDATE_HEAD] = ""
    await site.tick()
    [view] = await site.rollouts.views()
    assert view.missing[0].startswith("candidate_head has no draft head, so the arm that names it drafts without")
    assert "draft_head has" not in " ".join(view.missing[1:])
    site.versions[CANDIDATE_HEAD] = "mine@4"
    await site.tick()
    decision = site.decide(1, ineligible=[CANDIDATE_HEAD])
    request = ended()
    left_out = replace(request.about, assignment=decision.assignment, is_evidence=decision.is_evidence)
    site.rollouts.on_request_end(replace(request, about=left_out))
    [view] = await site.rollouts.views()
    assert view.missing[-1].startswith("1 requests of this stage do not count: their caller, a flag or what")
    assert "has no draft head" not in " ".join(view.missing)
