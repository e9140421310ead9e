"""Explanations: the rules that led to a decision, and the differences of two policies."""

from prolepsis.control.policy.decision import SpeculationRequest
from prolepsis.control.policy.explain import Change, Tried, diff, explain
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
    assert explanation.rules == [
        Tried("bank", "no_match", "route is not given; asked: /v1/responses"),
        Tried("code", "matched"),
        Tried("rest", "not_reached"),
        Tried("default", "not_reached"),
    ]
    assert explanation.policy_version == policy(TEXT).full_version
    effect = explanation.in_effect
    assert effect is not None
    assert (explanation.rule, effect["mode"], effect["num_speculative_tokens"]) == ("code", "on", 6)


def test_the_default_counts_where_none_matches() -> None:
    explanation = explain(policy(TEXT), RequestFacts(), SpeculationRequest("always"))
    assert [tried.outcome for tried in explanation.rules] == ["no_match", "no_match", "no_match", "matched"]
    assert explanation.rule == "default"
    assert explanation.in_effect is not None
    assert (explanation.in_effect["forced"], explanation.in_effect["sources"]["mode"]) == (True, "caller")


def test_a_request_against_a_pinned_rule_leaves_no_decision() -> None:
    facts = RequestFacts(tenant="bank", route="/v1/responses")
    explanation = explain(policy(TEXT), facts, SpeculationRequest("always"))
    assert explanation.in_effect is None
    assert explanation.refused is not None
    assert explanation.refused["param"] == "speculation.mode"


def rules(*names: str) -> str:
    return "rules: [" + ", ".join(f"{{name: {name}, match: {{tenant: {name}}}, use: chat}}" for name in names) + "]"


def test_a_policy_has_no_difference_from_itself() -> None:
    assert diff(policy(rules("a", "b")), policy(rules("a", "b"))) == []


def test_added_removed_and_the_fewest_moved() -> None:
    changes = diff(policy(rules("a", "b", "c", "d")), policy(rules("d", "a", "b", "e")))
    assert [(change.kind, change.rule, change.old, change.new) for change in changes if change.field] == [
        ("moved", "d", 4, 1)
    ]
    whole = {(change.kind, change.rule) for change in changes if not change.field}
    assert whole == {("removed", "c"), ("added", "e")}
    [added] = [change for change in changes if change.kind == "added"]
    assert added.new == {"position": 4, "match": {"tenant": ["e"]}, "mode": "on", "num_speculative_tokens": 8}


def test_changed_field_by_field_with_presets_filled_in() -> None:
    old = """
        rules:
          - {name: a, match: {tenant: a, prompt_tokens: {min: 1, max: 9}}, use: chat}
    """
    new = """
        version: 2
        default: {mode: shadow}
        rules:
          - name: a
            description: now for code
            match: {prompt_tokens: {min: 1, max: 8}, tools: true}
            use: code
            guardrails: [{name: rate, metric: acceptance_rate, limit: 0.7}]
    """
    assert diff(policy(old), policy(new)) == [
        Change("changed", "", "version", "", "2", effective=False),
        Change("changed", "a", "match.tenant", ["a"], None),
        Change("changed", "a", "match.prompt_tokens.max", 9.0, 8.0),
        Change("changed", "a", "match.tools", None, True),
        Change("changed", "a", "num_speculative_tokens", 8, 24),
        Change("changed", "a", "guardrails[rate].name", None, "rate"),
        Change("changed", "a", "guardrails[rate].metric", None, "acceptance_rate"),
        Change("changed", "a", "guardrails[rate].limit", None, 0.7),
        Change("changed", "a", "guardrails[rate].dry_run", None, False),
        Change("changed", "a", "description", "", "now for code", effective=False),
        Change("changed", "default", "mode", "off", "shadow"),
    ]


def test_who_may_never_be_learnt_from_is_a_difference_that_takes_effect() -> None:
    learns = "default: {mode: on, learning: {tenants: a, serves: all}}"
    assert diff(policy(f"never_learn: [b, a]\n{learns}"), policy(f"never_learn: [a, b]\n{learns}")) == []
    [change] = diff(policy(learns), policy(f"never_learn: b\n{learns}"))
    assert change == Change("changed", "", "never_learn", [], ["b"])
    [change] = diff(policy(learns), policy(learns.replace("tenants: a", "tenants: [a, c]")))
    assert change == Change("changed", "default", "learning.tenants", ["a"], ["a", "c"])


def test_what_tells_traffic_classes_apart_is_a_difference_that_takes_effect() -> None:
    listed = "traffic_classes: {domain: medical, language: [de, fr]}"
    [change] = diff(policy(listed), policy(listed.replace("medical", "[medical, legal]")))
    assert change == Change("changed", "", "traffic_classes.domain", ["medical"], ["medical", "legal"])
    assert {change.field for change in diff(policy("default: {}"), policy(listed))} == {
        *("traffic_classes.domain", "traffic_classes.language")
    }
