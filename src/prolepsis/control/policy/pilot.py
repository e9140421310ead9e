"""Pilots: rules of a policy that end by themselves, in the text that people wrote, and what they take of traffic. Pure.

A pilot's rule holds until a time, and then its requests get what they got before: no command, server or store has to
be there at the end. Its rollout has one stage with a gate that a person opens, so that it never grows by itself and
the comparison is of one piece; harm takes it back at once.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import yaml

from prolepsis.control.policy.check import parse_policy
from prolepsis.control.policy.model import DEFAULT_RULE, Policy
from prolepsis.control.policy.rollout_terms import GUARDRAILS
from prolepsis.core.errors import ConfigError
from prolepsis.core.facts import RequestFacts

PILOT = "pilot-"
"""What the name of a pilot's rule begins with."""
_MOST_HOLDOUT, _KEPT_HOLDOUT, _DAY_S = 50.0, 5, 86400.0
_COSTS_MORE = 0.02
_ALL = {"time"}  # conditions of a pilot of everything
_PLAIN = "default: {mode: off}\n"  # of a policy without rules
_NO_RULES = re.compile(r"rules:\s*(\[\s*\])?\s*(#.*)?$")
_NOT_OF_NAMES = re.compile(r"[^A-Za-z0-9._-]+")

RuleText = Mapping[str, object]
"""A rule as a policy's text has it."""


@dataclass(frozen=True, slots=True)
class PilotTerms:
    """Terms of a pilot that begins `now`."""

    share: float  # percent of its requests that speculate
    days: float
    now: datetime

    def rule(self, name: str, match: Mapping[str, object]) -> RuleText:
        until = (self.now.astimezone(UTC) + timedelta(days=self.days)).replace(microsecond=0, tzinfo=None)
        plain = 100.0 - self.share
        rollout = {
            "step_weights": [self.share],
            "holdout": min(_MOST_HOLDOUT, plain),
            "max_step_s": self.days * _DAY_S,
        }
        return _rule(
            PILOT + _NOT_OF_NAMES.sub("-", name).strip("-")[: 64 - len(PILOT)],
            {**match, "time": {"until": f"{until.isoformat()}Z"}},
            rollout,
        )


def kept_rule(name: str, match: Mapping[str, object]) -> RuleText:
    """Return what a pilot's rule becomes where it stays: on for all its requests but a holdout, without an end."""
    rollout = {"step_weights": [100 - _KEPT_HOLDOUT], "holdout": _KEPT_HOLDOUT, "gate": "automatic"}
    return _rule(name.removeprefix(PILOT), {name: value for name, value in match.items() if name != "time"}, rollout)


def _rule(name: str, match: Mapping[str, object], rollout: Mapping[str, object]) -> RuleText:
    guardrails = [*map(dict, GUARDRAILS), {"name": "cost", "metric": "cost_per_token", "margin": _COSTS_MORE}]
    return {"name": name, "match": dict(match), "mode": "on", "rollout": dict(rollout), "guardrails": guardrails}


def rule_lines(rule: RuleText, indent: int = 2) -> list[str]:
    """Return the lines of a rule in a policy's text."""
    text = yaml.safe_dump([dict(rule)], sort_keys=False, default_flow_style=None, width=1000)
    return [f"{' ' * indent}{line}\n" for line in text.splitlines()]


def with_rules(text: str, rules: Sequence[RuleText]) -> str:
    """Return a policy's text, which may be empty, with rules behind those that are pinned or a pilot's, before others.

    A rule without conditions but its end stands last. Raises `ConfigError` where the text's form leaves no place.
    """
    parts = _Parts.of(text or _PLAIN)
    others = enumerate(parts.policy.rules)
    ahead = [
        i
        for i, rule in others
        if rule.terms.pinned or (rule.name.startswith(PILOT) and rule.match.conditions.keys() != _ALL)
    ]
    first = ahead[-1] + 1 if ahead else 0
    own = [rule for rule in rules if rule["match"].keys() != _ALL]  # type: ignore[attr-defined]
    for place, put in ((len(parts.items), [rule for rule in rules if rule not in own]), (first, own)):
        parts.items[place:place] = [rule_lines(rule, parts.indent) for rule in put]
    return parts.text({*(rule.name for rule in parts.policy.rules), *(str(rule["name"]) for rule in rules)})


def with_replaced(text: str, rules: Mapping[str, RuleText | None]) -> str:
    """Return a policy's text with others in place of the rules that are named, or without them."""
    parts = _Parts.of(text)
    names = [rule.name for rule in parts.policy.rules]
    for i, name in enumerate(names):
        if name in rules:
            new = rules[name]
            parts.items[i] = [] if new is None else rule_lines(new, parts.indent)
    left = {name for name in names if name not in rules}
    new_names = {str(rule["name"]) for rule in rules.values() if rule is not None}
    if taken := left & new_names:
        raise ConfigError(f"the policy has a rule {', '.join(taken)} already; allowed: another name", param="rule")
    return parts.text(left | new_names)


@dataclass(slots=True)
class _Parts:
    """A policy's text in parts: what is before the rules, the lines of each, what is behind."""

    policy: Policy
    head: list[str]
    items: list[list[str]]
    tail: list[str]
    indent: int

    @classmethod
    def of(cls, text: str) -> "_Parts":
        (policy, document), lines = parse_policy(text, "policy"), [f"{line}\n" for line in text.splitlines()]
        starts = [(document.line(("rules", i)) or 1) - 1 for i in range(len(policy.rules))]
        if not starts:
            return cls(policy, [*_without_rules(lines), "rules:\n"], [], [], 2)
        indent, end = _indent(lines[starts[0]]), _end(lines, starts[-1])
        if any(not lines[start][indent:].startswith("- ") for start in starts):
            raise ConfigError("the policy's rules are not one below the other, each after a dash", param="policy")
        for i in range(len(starts)):
            while lines[starts[i] - 1].lstrip().startswith("#"):  # it is about the rule
                starts[i] -= 1
        cuts = [*starts, end]
        items = [lines[start:stop] for start, stop in pairwise(cuts)]
        return cls(policy, lines[: starts[0]], items, lines[end:], indent)

    def text(self, names: set[str]) -> str:
        """Return the whole text, once it is sure that its rules are those named."""
        head = self.head if any(self.items) else _without_rules(self.head)
        made = "".join([*head, *(line for item in self.items for line in item), *self.tail])
        made = made if any(line.strip() and line[0] != "#" for line in made.splitlines()) else _PLAIN
        if {rule.name for rule in parse_policy(made, "policy")[0].rules} != names:
            raise ConfigError("the policy's text has a form that a command cannot edit", param="policy")
        return made


def _without_rules(lines: Sequence[str]) -> list[str]:
    return [line for line in lines if not _NO_RULES.match(line)]


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _end(lines: Sequence[str], start: int) -> int:
    """Return where an item ends: behind its last line that is neither empty nor a comment."""
    end = start + 1
    for i, line in enumerate(lines[end:], end):
        if line.strip() and not line.lstrip().startswith("#"):
            if _indent(line) <= _indent(lines[start]):
                break
            end = i + 1
    return end


def facts_of(recent: Mapping[str, Any]) -> RequestFacts:
    """Return the facts of a request as /admin/requests has it; others are the API's defaults."""
    row = recent["record"]
    return RequestFacts(
        route=row["route"],
        model=row["model"],
        tenant=row["tenant"],
        tier=row["tier"],
        key=row["key_id"],
        prompt_tokens=row["num_prompt_tokens"],
        time=datetime.fromtimestamp(row["ended_at"], UTC),
        **recent["facts"],
    )


def taken(before: Policy, after: Policy, facts: Sequence[RequestFacts]) -> Mapping[str, Counter[str]]:
    """Return by rule of a pilot how many of the requests it matches, by the rule that they had before."""
    found: dict[str, Counter[str]] = {rule.name: Counter() for rule in after.rules if rule.name.startswith(PILOT)}
    for request in facts:
        rule, was = after.rule_for(request), before.rule_for(request)
        if rule is not None and rule.name in found:
            found[rule.name][was.name if was else DEFAULT_RULE] += 1
    return found
