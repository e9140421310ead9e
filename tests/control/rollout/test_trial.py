"""Trials: a head that a rule learnt against its champion, in rollouts of their own that leave the rule's as it was."""

from collections.abc import Callable
from functools import partial

import pytest

from prolepsis.control.policy.decision import Conflict, Decision, SpeculationRequest
from prolepsis.control.policy.explain import explain
from prolepsis.control.policy.learnt import with_champion, with_trial
from prolepsis.control.policy.model import Terms, control_terms
from prolepsis.control.policy.source import GivenPolicy
from prolepsis.control.rollout.live import targets_of
from prolepsis.control.rollout.runtime import RolloutView
from prolepsis.control.rollout.settings import settings_of
from prolepsis.control.statistics.means import Limit, Ratio
from prolepsis.core.config import CANDIDATE_HEAD, DRAFT_HEAD, LEARNT_HEAD, PROPOSER_NAMES, HeadProposerName
from prolepsis.core.facts import RequestFacts
from prolepsis.core.reasons import OffReason
from tests.control.policy.policies import policy
from tests.control.rollout.test_against import Site as AgainstSite

LEARNS = "mode: on, {0}learning: {{tenants: acme, gain: 0.1, stages: [50]}}"
ACME = RequestFacts(tenant="acme", targeting_key="request-1")
HEADS = {DRAFT_HEAD, CANDIDATE_HEAD, LEARNT_HEAD}
Change = Callable[[Terms], Terms]


def learns(given: str = "") -> str:
    return f"rules: [{{name: acme, match: {{tenant: acme}}, {LEARNS.format(given)}}}]"


def terms(given: str = "") -> Terms:
    return policy(learns(given)).rules[0].terms


def trial(head: str, champion: HeadProposerName = DRAFT_HEAD) -> Change:
    return partial(with_trial, head=head, champion=champion, shadow_limit=0.4)


class Site(AgainstSite):
    def __init__(self, given: str = "") -> None:
        super().__init__("", held=policy(learns(given)))

    def decide(self, number: int, ineligible: object = (), asked: SpeculationRequest | None = None) -> Decision:
        facts = RequestFacts(tenant="acme", targeting_key=f"request-{number}")
        decision = self.policies.decide(asked or SpeculationRequest(), facts)
        assert isinstance(decision, Decision), decision
        return decision

    async def view(self) -> RolloutView:
        [view] = await self.rollouts.views()
        return view

    async def pass_shadow(self) -> None:
        await self.tick()
        for i in range(2000):
            assignment = self.decide(i).assignment
            assert assignment is not None
            values = {"acceptance_length": 2.0 + 0.2 * (i % 2), "error": 0.0, "latency_per_token_ms": 5.0 + i % 20 / 10}
            self.rollouts.observe(assignment, values | ({"acceptance": 0.7} if assignment.arm == "canary" else {}))
        await self.tick(70.0)

    async def judged(self, gain: float) -> RolloutView:
        """Return the rollout after canary requests that take so many times the control's tokens a pass."""
        for round_ in range(10):
            for i in range(400):
                assignment = self.decide(400 * round_ + i).assignment
                assert assignment is not None
                taken = (2.0 + 0.2 * (i % 2)) * (gain if assignment.arm == "canary" else 1.0)
                values = {"acceptance_length": taken, "error": 0.0, "latency_per_token_ms": 5.0 + i % 20 / 10}
                self.rollouts.observe(assignment, values)
            await self.tick(70.0)
        return await self.view()


@pytest.mark.parametrize(
    ("given", "champion", "control", "canary"),
    [
        ("", DRAFT_HEAD, None, {CANDIDATE_HEAD, *PROPOSER_NAMES} - {DRAFT_HEAD, LEARNT_HEAD}),
        ("proposers: [draft_head, suffix], ", DRAFT_HEAD, {DRAFT_HEAD, "suffix"}, {CANDIDATE_HEAD, "suffix"}),
        ("proposers: [suffix], ", DRAFT_HEAD, {"suffix"}, {CANDIDATE_HEAD, "suffix"}),
        ("proposers: [draft_head, suffix], ", LEARNT_HEAD, {LEARNT_HEAD, "suffix"}, {CANDIDATE_HEAD, "suffix"}),
        ("", LEARNT_HEAD, {LEARNT_HEAD, *PROPOSER_NAMES} - {DRAFT_HEAD, CANDIDATE_HEAD}, None),
    ],
)
def test_the_candidate_takes_the_champions_place(
    given: str, champion: HeadProposerName, control: set[str] | None, canary: set[str] | None
) -> None:
    own = terms(given)
    tried = with_trial(own, "acme@4", champion, shadow_limit=0.4)
    proposers = control_terms(tried).proposers
    assert (proposers and {*proposers}) == control
    assert canary is None or {*(tried.proposers or ())} == canary
    assert {*(with_champion(own).proposers or ())} & HEADS == {LEARNT_HEAD}
    assert (tried.learning, tried.mode, tried.emit) == (own.learning, own.mode, own.emit)


def test_a_trial_begins_in_shadow_and_then_has_to_gain() -> None:
    found = settings_of(with_trial(terms(), "acme@4", DRAFT_HEAD, shadow_limit=0.4))
    shadow, canary = found.stages
    assert (shadow.kind, shadow.share, canary.kind, canary.share) == ("shadow", 0.05, "canary", 0.5)
    assert [(g.measure, g.dry_run) for g in shadow.guardrails] == [(Limit(limit=0.4, num_points=33), False)]
    by_name = {guardrail.name: guardrail for guardrail in canary.guardrails}
    assert (by_name["gain"].measure, by_name["gain"].better) == (Ratio(margin=-0.1), "higher")
    assert {name: guardrail.dry_run for name, guardrail in by_name.items()} == {
        "gain": False,
        "time": False,
        "errors": False,
        "alone": True,
    }
    assert (found.on_inconclusive, found.on_harm, found.holdout) == ("rollback", "plain", 0.05)
    assert (shadow.manual_gate, canary.maximum_s) == (False, 7 * 86400.0)


def test_what_the_rule_assigns_by_stays() -> None:
    for given, unit in (("rollout: {assign_by: {header: x-conversation-id}}, ", "x-conversation-id"), ("", "request")):
        rollout = trial("acme@4")(terms(given)).rollout
        assert rollout is not None
        assert rollout.unit == unit


async def test_one_in_twenty_requests_compares_the_candidate_alone_and_all_others_draft_with_the_champion() -> None:
    site = Site("proposers: [draft_head, suffix], ")
    site.policies.learnt("acme", trial("acme@4"))
    await site.tick()
    choices = [site.decide(i).choice for i in range(2000)]
    served = {(choice.mode, choice.proposers) for choice in choices}
    assert served == {("auto", (DRAFT_HEAD, "suffix")), ("shadow", (CANDIDATE_HEAD,))}
    assert 60 < sum(choice.mode == "shadow" for choice in choices) < 140
    assert all(site.decide(i).is_evidence for i in range(100))
    assert (await site.view()).stage == "shadow"


@pytest.mark.parametrize(("gain", "phase"), [(1.3, "on"), (1.0, "rolled_back")])
async def test_a_head_that_is_merely_not_worse_is_taken_back(gain: float, phase: str) -> None:
    site = Site()
    site.policies.learnt("acme", trial("acme@4"))
    await site.pass_shadow()
    assert (await site.view()).stage == "canary 50%"
    assert {site.decide(i).choice.mode for i in range(100)} == {"auto"}
    assert (await site.judged(gain)).phase == phase


async def test_a_candidate_that_drafts_worse_than_it_was_evaluated_never_drafts_for_users() -> None:
    site = Site()
    site.policies.learnt("acme", trial("acme@4"))
    await site.tick()
    for i in range(2000):
        assignment = site.decide(i).assignment
        assert assignment is not None
        site.rollouts.observe(assignment, {"acceptance": 0.1} if assignment.arm == "canary" else {})
    await site.tick()
    view = await site.view()
    assert (view.phase, view.stage) == ("rolled_back", "shadow")
    assert {site.decide(i).choice.proposers for i in range(100)} == {None}, "all have the champion"


async def test_each_head_has_a_rollout_of_its_own_and_the_rules_comes_back_as_it_was() -> None:
    site = Site("rollout: {stages: [50], gate: automatic}, guardrails: [{name: e, metric: error_rate, limit: 0.3}], ")
    await site.tick()
    own = await site.view()
    await site.rollouts.command(own.id, "promote", "drill", force=True)
    version = site.policies.version
    ids = [own.id]
    for number in (4, 5):
        site.policies.learnt("acme", trial(f"acme@{number}"))
        await site.tick()
        view = await site.view()
        assert view.phase == "running"
        ids.append(view.id)
    assert len({*ids}) == 3
    for change in (with_champion, None):
        site.policies.learnt("acme", change)
        view = await site.view()
        assert (view.id, view.phase) == (own.id, "on")
    assert site.policies.version == version
    assert {left.target.rollout_id for left in site.rollouts._left} == {*ids[1:]}


def test_an_edit_of_what_is_learnt_is_no_other_rollout_of_the_rule() -> None:
    held = learns("rollout: {}, ")
    edited = held.replace("gain: 0.1", "gain: 0.2")
    targets = [targets_of(policy(text), "tiny")["acme"] for text in (held, edited)]
    trials = [trial("acme@4")(policy(text).rules[0].terms) for text in (held, edited)]
    tried = [targets_of(policy(held), "tiny", {"acme": terms})["acme"] for terms in trials]
    assert targets[0].rollout_id == targets[1].rollout_id
    assert tried[0].rollout_id != tried[1].rollout_id, "it has to gain more"


async def test_a_promoted_head_drafts_in_the_rule_and_its_rollout_is_judged_again() -> None:
    site = Site("rollout: {stages: [50], gate: automatic}, guardrails: [{name: e, metric: error_rate, limit: 0.3}], ")
    site.versions[LEARNT_HEAD] = "acme@4"
    site.policies.learnt("acme", with_champion)
    await site.tick()
    view = await site.view()
    assert view.weights == "acme@4"
    drafting = [choice for i in range(100) if (choice := site.decide(i).choice).mode == "auto"]
    assert {name for choice in drafting for name in choice.proposers or ()} & HEADS == {LEARNT_HEAD}


async def test_what_was_learnt_outlives_an_edit_and_ends_with_the_rules_terms_of_learning() -> None:
    site = Site()
    change = trial("acme@4")
    site.policies.learnt("acme", change)
    assert [*site.policies.learning] == ["acme"]

    def edit(text: str) -> tuple[str, ...] | None:
        site.policies.source = GivenPolicy(policy(text))
        site.policies._take("reloaded")
        return site.policies.terms["acme"].proposers

    assert CANDIDATE_HEAD in (edit(learns("num_speculative_tokens: 4, ")) or ())
    assert edit("rules: [{name: acme, match: {tenant: acme}, mode: on}]") is None
    assert [*site.policies.learning] == []
    assert CANDIDATE_HEAD in (edit(learns()) or ())
    site.policies.learnt("acme", None)
    assert site.policies.terms["acme"].proposers is None


async def test_the_same_change_again_changes_nothing() -> None:
    site = Site()
    site.policies.learnt("acme", trial("acme@4"))
    in_force = site.policies.terms
    site.policies.learnt("acme", trial("acme@4"))
    assert site.policies.terms is in_force


async def test_eligibility_hears_of_what_was_learnt() -> None:
    site = Site()
    before, _ = site.policies.conditions
    site.policies.learnt("acme", with_champion)
    after, conditions = site.policies.conditions
    assert before != after
    assert any(LEARNT_HEAD in (proposers or ()) for proposers, _ in conditions)


async def test_a_trial_refuses_no_caller_that_the_policy_lets_choose() -> None:
    site = Site("proposers: [draft_head, suffix], ")
    site.policies.learnt("acme", trial("acme@4"))
    await site.tick()
    for asked in (DRAFT_HEAD, "suffix"):
        decisions = [site.decide(i, asked=SpeculationRequest(proposer=asked)) for i in range(200)]
        assert {decision.choice.proposers for decision in decisions} == {(asked,)}
        assert not any(decision.is_evidence for decision in decisions)
    refused = site.policies.decide(SpeculationRequest(proposer=CANDIDATE_HEAD), ACME)
    assert isinstance(refused, Conflict)
    assert refused.message.endswith("allowed by the policy's rule 'acme': draft_head, suffix")


async def test_a_rule_that_is_taken_back_serves_its_champion_and_no_plain_requests() -> None:
    site = Site()
    site.policies.learnt("acme", trial("acme@4"))
    await site.tick()
    await site.rollouts.command((await site.view()).id, "rollback", "drill")
    off: set[tuple[str, OffReason]] = {(c.mode, c.off_reason) for i in range(100) if (c := site.decide(i).choice)}
    assert off == {("auto", "requested_off")}


def test_explained_is_what_is_in_force_and_the_policy_stays() -> None:
    held = policy(learns("proposers: [draft_head, suffix], "))
    in_force = {"acme": trial("acme@4")(held.rules[0].terms)}
    explained = explain(held, ACME, in_force=in_force)
    assert explained.in_effect is not None
    assert explained.in_effect["proposers"] == (CANDIDATE_HEAD, "suffix")
    assert explained.terms["rollout"]["trial"] == "acme@4"  # type: ignore[index]
    assert explained.policy_version == held.full_version
    asked = SpeculationRequest(proposer=DRAFT_HEAD)
    assert explain(held, ACME, asked, in_force=in_force).refused is None
