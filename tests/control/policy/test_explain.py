"""Every rule in order, then what takes effect."""

from prolepsis.control.policy.decision import SpeculationRequest
from prolepsis.control.policy.explain import Tried, explain
from prolepsis.core.facts import RequestFacts
from tests.control.policy.policies import policy

TEXT = """
    version: 1
    rules:
      - {name: bank, match: {tenant: bank, route: /v1/responses}, pinned: true}
      - {name: code, match: {temperature: {max: 0.5}}, use: code, num_speculative_tokens: 6}
      - {name: rest, match: {stream: true}, mode: on}
"""


def test_each_rule_says_why() -> None:
    explanation = explain(policy(TEXT), RequestFacts(tenant="bank", temperature=0.2, stream=True))
    assert explanation.tried == (
        Tried("bank", "no_match", "route is not given; asked: /v1/responses"),
        Tried("code", "matched"),
        Tried("rest", "not_reached"),
        Tried("default", "not_reached"),
    )
    assert explanation.policy_version == policy(TEXT).full_version
    assert explanation.decision is not None
    effect = explanation.decision
    assert (explanation.rule, effect.choice.mode, effect.choice.num_speculative_tokens) == ("code", "auto", 6)


def test_the_default_counts_where_none_matches() -> None:
    explanation = explain(policy(TEXT), RequestFacts(), SpeculationRequest("always"))
    assert [tried.outcome for tried in explanation.tried] == ["no_match", "no_match", "no_match", "matched"]
    assert explanation.rule == "default"
    assert explanation.decision is not None
    assert (explanation.decision.choice.mode, explanation.decision.sources["mode"]) == ("always", "caller")


def test_a_request_against_a_pinned_rule_leaves_no_decision() -> None:
    facts = RequestFacts(tenant="bank", route="/v1/responses")
    explanation = explain(policy(TEXT), facts, SpeculationRequest("always"))
    assert explanation.decision is None
    assert explanation.conflict is not None
    assert explanation.conflict.param == "speculation.mode"
