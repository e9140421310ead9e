"""Differences by rule and field."""

from prolepsis.control.policy.explain import Change, diff
from tests.control.policy.policies import policy


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
