"""The first rule that matches counts; terms are preset, then what the rule gives; the digest follows what counts."""

from datetime import UTC, datetime

import pytest

from prolepsis.control.policy.check import InvalidPolicy
from prolepsis.control.policy.model import Match, Policy, Terms, mismatch
from prolepsis.core.facts import RequestFacts
from tests.control.policy.policies import policy

TWO = """
    default: {mode: shadow}
    rules:
      - {name: short, match: {max_tokens: {max: 32}}, mode: off}
      - {name: acme, match: {tenant: acme}, use: batch, emit: token}
"""


@pytest.mark.parametrize(
    ("facts", "name"),
    [
        (RequestFacts(tenant="acme"), "acme"),
        (RequestFacts(tenant="acme", max_tokens=32), "short"),
        (RequestFacts(tenant="other", max_tokens=33), None),
    ],
)
def test_the_first_that_matches(facts: RequestFacts, name: str | None) -> None:
    rule = policy(TWO).rule_for(facts)
    assert (rule and rule.name) == name


def test_no_file_of_rules_speculates_by_itself() -> None:
    assert Policy().default_terms == Terms(mode="off")
    assert policy("rules: [{name: a, match: {}}]").rules[0].terms.mode == "off"


def test_a_rule_takes_the_place_of_its_preset_field_by_field() -> None:
    terms = policy(TWO).rules[1].terms
    assert (terms.mode, terms.num_speculative_tokens, terms.emit) == ("on", 4, "token")
    assert terms.proposers == ("client", "corpus", "grammar", "prediction", "prompt_lookup", "suffix")
    text = "rules: [{name: a, match: {}, use: batch, proposers: null, num_speculative_tokens: 9}]"
    over = policy(text).rules[0].terms
    assert (over.mode, over.proposers, over.num_speculative_tokens) == ("on", None, 9)


@pytest.mark.parametrize(
    ("match", "facts", "said"),
    [
        (
            {"prompt_tokens": {"max": 4096}},
            RequestFacts(prompt_tokens=5000),
            "prompt_tokens is 5000; asked: up to 4096",
        ),
        ({"prompt_tokens": {"min": 1}}, RequestFacts(), "prompt_tokens is not given; asked: 1 or more"),
        ({"max_tokens": {"max": 9}}, RequestFacts(), "max_tokens is unlimited; asked: up to 9"),
        ({"tools": True}, RequestFacts(), "tools is false; asked: true"),
        ({"temperature": 0}, RequestFacts(temperature=0.7), "temperature is 0.7; asked: 0"),
        ({"roles": "operator"}, RequestFacts(roles=frozenset({"client"})), "roles is client; asked: operator"),
        ({"headers": {"X-App": "ide"}}, RequestFacts(headers={"x-app": "web"}), "headers.x-app is web; asked: ide"),
        (
            {"time": {"days": "sat"}},
            RequestFacts(time=datetime(2026, 11, 20, 9, 5, tzinfo=UTC)),
            "time is Fri 2026-11-20 09:05 UTC; asked: sat 00:00-24:00 UTC",
        ),
        # the conditions are tried in the order of the schema, so the tenant comes first
        ({"tools": True, "tenant": "a"}, RequestFacts(tenant="b"), "tenant is b; asked: a"),
    ],
)
def test_the_first_condition_that_fails_is_reported(match: dict[str, object], facts: RequestFacts, said: str) -> None:
    asked = Match.model_validate(match)
    assert str(mismatch(asked, facts)) == said
    assert not asked.holds(facts)


def test_every_condition_asks_a_fact_of_its_name() -> None:
    assert set(Match.model_fields) <= set(RequestFacts.__slots__)


def test_the_digest_follows_what_takes_effect() -> None:
    digest = policy(TWO).digest
    rewritten = """
        # a comment, another order of keys, the preset written out
        version: 3
        description: the same
        rules:
          - {mode: "off", match: {max_tokens: {max: 32.0}}, name: short}
          - name: acme
            match: {tenant: [acme]}
            mode: on
            proposers: [client, corpus, grammar, prediction, prompt_lookup, suffix]
            num_speculative_tokens: 4
            emit: token
        default:
          mode: shadow
    """
    assert policy(rewritten).digest == digest
    assert policy(rewritten).full_version == f"3@{digest}"
    for old, new in (("32", "33"), ("emit: token", "emit: block"), ("name: acme", "name: acme2"), ("shadow", "off")):
        assert policy(TWO.replace(old, new)).digest != digest
    swapped = Policy(default=policy(TWO).default, rules=policy(TWO).rules[::-1])
    assert swapped.digest != digest


def test_learning_is_part_of_a_policy_only_where_it_is_given() -> None:
    assert policy(TWO).digest == "8e1a877e1036", "what it was before"
    learns = TWO.replace("emit: token", "emit: token, learning: {tenants: acme}")
    digests = [
        policy(text).digest for text in (TWO, learns, learns.replace("tenants: acme", "tenants: acme, gain: 0.1"))
    ]
    digests.append(policy(f"{TWO}    never_learn: [b, a]").digest)
    assert len({*digests}) == 4
    assert policy(f"{TWO}    never_learn: [a, b, a]").digest == digests[-1]
    assert policy(f"{TWO}    never_record: [a, b]").digest not in digests
    assert "learning" not in policy(TWO).content()["rules"][1]  # type: ignore[index]


def test_traffic_classes_are_part_of_a_policy_only_where_they_differ_from_the_usual() -> None:
    listed = policy(f"{TWO}    traffic_classes: {{language: [de, fr], detect_language: true}}")
    assert listed.digest != policy(TWO).digest == policy(f"{TWO}    traffic_classes: {{domain: []}}").digest
    assert listed.content()["traffic_classes"] == {"domain": [], "language": ["de", "fr"], "detect_language": True}
    many = ", ".join(f"d{number}" for number in range(13))
    with pytest.raises(InvalidPolicy, match=r"traffic_classes\.domain .*allowed: at most 12 items"):
        policy(f"traffic_classes: {{domain: [{many}]}}")


def test_no_file_gives_a_trial() -> None:
    with pytest.raises(InvalidPolicy, match=r"rollout\.trial is unknown"):
        policy("default: {mode: on, rollout: {trial: mine@4}}")
