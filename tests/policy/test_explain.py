"""Every rule in order, then what takes effect."""

from prolepsis.core.facts import RequestFacts
from prolepsis.policy.explain import Tried, Wish, explain
from tests.policy.policies import policy

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
    assert explanation.in_effect is not None
    effect = explanation.in_effect
    assert (explanation.rule, effect.mode, effect.num_speculative_tokens) == ("code", "on", 6)


def test_the_default_counts_where_none_matches() -> None:
    explanation = explain(policy(TEXT), RequestFacts(), Wish("on"))
    assert [tried.outcome for tried in explanation.tried] == ["no_match", "no_match", "no_match", "matched"]
    assert explanation.rule == "default"
    assert explanation.in_effect is not None
    assert (explanation.in_effect.mode, explanation.in_effect.sources["mode"]) == ("on", "caller")


def test_a_wish_against_a_pinned_rule_leaves_nothing_in_effect() -> None:
    facts = RequestFacts(tenant="bank", route="/v1/responses")
    explanation = explain(policy(TEXT), facts, Wish("on"))
    assert explanation.in_effect is None
    assert explanation.conflict is not None
    assert explanation.conflict.param == "speculation.mode"
