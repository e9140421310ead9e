"""Why a request gets what it gets: every rule in order, then the terms, then the caller's own wish."""

from dataclasses import dataclass
from typing import Literal

from prolepsis.control.facts import RequestFacts
from prolepsis.control.in_effect import NO_WISH, Conflict, InEffect, Wish, conflict, in_effect
from prolepsis.control.match import mismatch
from prolepsis.control.policy import DEFAULT_RULE, Policy
from prolepsis.control.terms import Terms

Outcome = Literal["matched", "no_match", "not_reached"]


@dataclass(frozen=True, slots=True)
class Tried:
    """What one rule said of the request."""

    rule: str
    outcome: Outcome
    why: str = ""
    """The first condition that does not hold."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """How the policy came to its terms, and what takes effect."""

    policy_version: str
    tried: tuple[Tried, ...]
    rule: str
    """The one that matched, or the default."""
    terms: Terms
    conflict: Conflict | None
    """The request would be refused; then nothing is in effect."""
    in_effect: InEffect | None


def explain(policy: Policy, facts: RequestFacts, wish: Wish = NO_WISH) -> Explanation:
    """Return why a request with these facts and this wish gets what it gets."""
    tried: list[Tried] = []
    name, terms = DEFAULT_RULE, policy.default_terms
    for rule in policy.rules:
        if name != DEFAULT_RULE:
            tried.append(Tried(rule.name, "not_reached"))
        elif (failed := mismatch(rule.match, facts)) is not None:
            tried.append(Tried(rule.name, "no_match", str(failed)))
        else:
            tried.append(Tried(rule.name, "matched"))
            name, terms = rule.name, rule.terms
    tried.append(Tried(DEFAULT_RULE, "matched" if name == DEFAULT_RULE else "not_reached"))
    against = conflict(name, terms, wish)
    effect = None if against else in_effect(name, terms, wish, facts.targeting_key)
    return Explanation(policy.full_version, tuple(tried), name, terms, against, effect)
