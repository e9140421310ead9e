"""Rules of a pilot in the text of a policy: their place, their end, and that nothing else of the text changes."""

from datetime import UTC, datetime, timedelta

import pytest

from prolepsis.control.policy.check import Known, parse_policy, usable_policy
from prolepsis.control.policy.model import Policy
from prolepsis.control.policy.pilot import RuleText, kept_rule, matched, pilot_rule, with_replaced, with_rules
from prolepsis.core.errors import ConfigError
from prolepsis.core.facts import RequestFacts

NOW = datetime(2026, 11, 28, 13, 0, tzinfo=UTC)


def started(name: str, match: RuleText, share: float = 50.0) -> RuleText:
    return pilot_rule(name, match, share=share, days=7.0, now=NOW)


CODE = started("code", {"route": "/v1/completions", "domain": "code"})
TEXT = """\
version: 7   # for people
default: {mode: off}
rules:
  # Asked for by the auditors.
  - name: regulated
    match: {tenant: bank}
    mode: off
    pinned: true

  # What editors ask.
  - name: editor
    match: {route: /v1/completions}
    mode: off   # for now
# The end.
"""


def policy(text: str) -> Policy:
    return usable_policy(text, "policy", Known())


def names(text: str) -> list[str]:
    return [rule.name for rule in policy(text).rules]


def test_a_pilot_is_before_the_rules_that_it_takes_from_and_behind_those_that_are_pinned() -> None:
    made = with_rules(TEXT, [CODE])
    assert names(made) == ["regulated", "pilot-code", "editor"]
    before, after = made.split("  - name: pilot-code\n")
    assert TEXT.startswith(before.rstrip("\n"))
    assert after.endswith(TEXT[TEXT.index("\n  # What editors ask.") :])
    facts = RequestFacts(route="/v1/completions", domain="code", tenant="bank", time=NOW)
    assert [rule.name for rule in [policy(made).rule_for(facts)] if rule] == ["regulated"]


def test_its_requests_get_at_its_end_what_they_got_before() -> None:
    made = policy(with_rules(TEXT, [CODE]))
    for later, rule in ((timedelta(days=6.9), "pilot-code"), (timedelta(days=7), "editor")):
        found = made.rule_for(RequestFacts(route="/v1/completions", domain="code", time=NOW + later))
        assert found is not None
        assert found.name == rule


def test_what_is_taken_out_leaves_the_text_as_it_was() -> None:
    for text in (TEXT, TEXT.replace("    pinned: true\n", ""), TEXT.replace("\n  #", "\n#")):
        assert with_replaced(with_rules(text, [CODE]), {"pilot-code": None}) == text
    alone = with_rules("", [CODE])
    assert names(alone) == ["pilot-code"]
    left = parse_policy(with_replaced(alone, {"pilot-code": None}), "policy")[0]
    assert (left.rules, left.default.mode) == ((), "on"), "callers decide, as without a policy"


def test_a_rule_without_conditions_is_the_last() -> None:
    every = started("default", {})
    made = with_rules(TEXT, [every, CODE])
    assert names(made) == ["regulated", "pilot-code", "editor", "pilot-default"]
    assert made.endswith("# The end.\n")


def test_a_pilot_that_is_kept_has_no_end_and_a_holdout() -> None:
    text = with_rules(TEXT, [CODE])
    match = policy(text).content()["rules"][1]["match"]  # type: ignore[index]
    made = with_replaced(text, {"pilot-code": kept_rule("pilot-code", match)})
    [_, rule, _] = policy(made).rules
    assert (rule.name, rule.match.time, rule.match.domain) == ("code", None, policy(text).rules[1].match.domain)
    assert rule.terms.rollout is not None
    assert (rule.terms.rollout.holdout, rule.terms.rollout.gate) == (5, "automatic")
    with pytest.raises(ConfigError, match="allowed: names that differ"):
        policy(with_replaced(text, {"pilot-code": kept_rule("pilot-editor", match)}))


@pytest.mark.parametrize("share", [1.0, 50.0, 95.0])
def test_its_share_and_its_holdout_are_possible_together(share: float) -> None:
    rule = started("chat-completions/standard/free/short", {"route": "/v1/completions"}, share)
    [made] = policy(with_rules("", [rule])).rules
    assert made.name == "pilot-chat-completions-standard-free-short"
    assert made.terms.rollout is not None
    assert (made.terms.rollout.stages, made.terms.rollout.gate) == ((share,), "manual")
    assert made.terms.rollout.holdout == min(50.0, 100.0 - share)


@pytest.mark.parametrize("text", ["rules: [{name: a, match: {}}]\n", "rules: []\n"])
def test_rules_in_braces_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="cannot edit"):
        with_rules(text, [CODE])


def test_requests_are_counted_by_the_rule_that_they_would_have() -> None:
    facts = {"route": "/v1/completions", "model": "m", "tenant": "acme", "tier": "standard", "key": "", "tools": False}
    recent = [{"facts": {**facts, "domain": domain, "prompt_tokens": 9}} for domain in ("code", "code", "chat", None)]
    code = pilot_rule("code", CODE["match"] | {"prompt_tokens": {"max": 9}}, share=50, days=1, now=datetime.now(UTC))
    assert matched(policy(with_rules(TEXT, [code])), recent) == {"pilot-code": 2, "editor": 2}
