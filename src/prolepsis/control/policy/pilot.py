"""Pilots: rules of a policy that end by themselves, in the text that people wrote, and what they take of traffic. Pure.

A pilot's rule holds until a time, and then its requests get what they got before: no command, server or store has to
be there at the end. Its rollout has one stage with a gate that a person opens, so that it never grows by itself and
the comparison is of one piece; harm takes it back at once.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import yaml

from prolepsis.control.policy.check import InvalidPolicy, parse_policy
from prolepsis.control.policy.model import Policy
from prolepsis.control.policy.rollout_terms import GUARDRAILS
from prolepsis.core.errors import ConfigError
from prolepsis.core.facts import RequestFacts

PILOT = "pilot-"
"""What the name of a pilot's rule begins with."""
_KEPT = {"stages": [95], "holdout": 5, "gate": "automatic"}
_COST = {"name": "cost", "metric": "cost_per_token", "margin": 0.02}
_ALL = {"time"}  # conditions of a pilot of everything
_BLOCK = r"^( *)- name: ({})\n(?:\1 .*\n)*"  # a rule as `rule_text` writes it
RuleText = Mapping[str, Any]
"""A rule as a policy's text has it."""


def pilot_rule(name: str, match: RuleText, *, share: float, days: float, now: datetime) -> RuleText:
    """Return a rule that gives drafts to `share` percent of what it matches, for some days."""
    until = f"{now.astimezone(UTC) + timedelta(days=days):%Y-%m-%dT%H:%M:%SZ}"
    rollout = {"stages": [share], "holdout": min(50.0, 100.0 - share), "max_stage_s": 86400.0 * days}
    called = f"{PILOT}{re.sub(r'[^A-Za-z0-9._-]+', '-', name).strip('-')}"[:64]
    return _rule(called, {**match, "time": {"until": until}}, rollout)


def kept_rule(name: str, match: RuleText) -> RuleText:
    """Return what a pilot's rule becomes where it stays: on for all its requests but a holdout, without an end."""
    return _rule(name.removeprefix(PILOT), {fact: match[fact] for fact in match if fact != "time"}, _KEPT)


def _rule(name: str, match: RuleText, rollout: RuleText) -> RuleText:
    guardrails = [*map(dict, GUARDRAILS), dict(_COST)]
    return {"name": name, "match": dict(match), "mode": "on", "rollout": dict(rollout), "guardrails": guardrails}


def rule_text(rule: RuleText, indent: str = "  ") -> str:
    text = yaml.safe_dump([dict(rule)], sort_keys=False, default_flow_style=None, width=1000)
    return "".join(f"{indent}{line}\n" for line in text.splitlines())


def with_rules(text: str, rules: Sequence[RuleText]) -> str:
    """Return a policy's text, which may be empty, with rules behind those that are pinned or a pilot's, before others.

    A rule without conditions but its end stands last. Raises `ConfigError` where the text's form leaves no place.
    """
    text = text or "default: {mode: on}\n"  # as without a policy, where callers decide alone
    if not parse_policy(text, "policy")[0].rules:
        return _checked(f"{text}rules:\n{''.join(map(rule_text, rules))}", [rule["name"] for rule in rules])
    for rule in rules:
        text = _with_rule(text, rule)
    return text


def _with_rule(text: str, rule: RuleText) -> str:
    (policy, document), lines = parse_policy(text, "policy"), [f"{line}\n" for line in text.splitlines()]
    ahead = (
        i
        for i, one in enumerate(policy.rules, 1)
        if one.terms.pinned or (is_pilot(one.name) and one.match.conditions.keys() != _ALL)
    )
    place, first = max(ahead, default=0), (document.line(("rules", 0)) or 1) - 1
    at = (document.line(("rules", place)) or 1) - 1
    if rule["match"].keys() == _ALL or place == len(policy.rules):
        root: Any = document.root
        at = next(value.end_mark.line for key, value in root.value if key.value == "rules")
    while lines[at - 1].lstrip().startswith("#"):  # it is about the rule
        at -= 1
    indent = lines[first][: len(lines[first]) - len(lines[first].lstrip())]
    made = "".join([*lines[:at], rule_text(rule, indent), *lines[at:]])
    return _checked(made, [*(one.name for one in policy.rules), rule["name"]])


def is_pilot(name: str) -> bool:
    return name.startswith(PILOT)


def with_replaced(text: str, rules: Mapping[str, RuleText | None]) -> str:
    """Return a policy's text with others in place of the rules of a pilot that are named, or without them."""
    left = [rule.name for rule in parse_policy(text, "policy")[0].rules if rule.name not in rules]
    named = re.compile(_BLOCK.format("|".join(map(re.escape, rules))), re.MULTILINE)
    made = named.sub(lambda found: rule_text(new, found[1]) if (new := rules[found[2]]) else "", text)
    kept = [rule["name"] for rule in rules.values() if rule]
    return _checked(made if left or kept else re.sub(r"^rules:\n", "", made, flags=re.MULTILINE), [*left, *kept])


def _checked(text: str, names: Sequence[str]) -> str:
    """Return the text, if its rules have these names."""
    with suppress(InvalidPolicy):
        if sorted(rule.name for rule in parse_policy(text, "policy")[0].rules) == sorted(names):
            return text
    raise ConfigError("the policy's text has a form that a command cannot edit", param="policy")


def matched(policy: Policy, recent: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """Return by rule how many requests have it, of those that /admin/requests has."""
    rules = (policy.rule_for(RequestFacts(**{**of["facts"], "time": datetime.now(UTC)})) for of in recent)
    return Counter(rule.name for rule in rules if rule is not None)
