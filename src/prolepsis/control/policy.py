"""A policy: ordered rules, of which the first that matches gives the terms, and a default where none does."""

import json
from collections.abc import Mapping
from functools import cached_property
from hashlib import sha256
from typing import Annotated

from pydantic import BeforeValidator

from prolepsis.control.facts import RequestFacts
from prolepsis.control.match import Match
from prolepsis.control.presets import in_full
from prolepsis.control.shape import Name, Part, spelt
from prolepsis.control.terms import GivenTerms, Terms

DEFAULT_RULE = "default"
"""What the default is called where rules are named; no rule has this name."""
_DIGEST_LENGTH = 12


class Rule(GivenTerms):
    """Terms for the requests that match."""

    name: Name
    description: str = ""
    match: Match

    @cached_property
    def terms(self) -> Terms:
        return in_full(self)


Label = Annotated[
    str, spelt(r"[A-Za-z0-9._+-]{0,64}", "a text of at most 64 letters, digits, dots, dashes, underscores or +")
]


def label_text(value: object) -> object:
    """Read a whole number as the text it is; 1.10 would become 1.1, so such versions need quotes."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


class Policy(Part):
    """What one file says."""

    version: Annotated[Label, BeforeValidator(label_text)] = ""
    """What people call this state of the file; nothing depends on it."""
    description: str = ""
    default: GivenTerms = GivenTerms()
    rules: Annotated[tuple[Rule, ...], BeforeValidator(lambda v: tuple(v) if isinstance(v, list) else v)] = ()

    @cached_property
    def default_terms(self) -> Terms:
        return in_full(self.default)

    @cached_property
    def digest(self) -> str:
        """The version of the content: equal where rules, order and terms are, whatever they are written like.

        Twelve hexadecimal digits of SHA-256 over names, conditions and terms with presets filled in; descriptions,
        comments and `version` do not count.
        """
        text = json.dumps(self.content(), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return sha256(text.encode()).hexdigest()[:_DIGEST_LENGTH]

    @cached_property
    def flag_names(self) -> tuple[str, ...]:
        """The feature flags that rules ask, each once."""
        asked = (rule.match.flag for rule in self.rules)
        return tuple(dict.fromkeys(name for flags in asked if flags is not None for name in flags.root))

    @property
    def full_version(self) -> str:
        """`version@digest`, or the digest alone where the file has no `version`."""
        return f"{self.version}@{self.digest}" if self.version else self.digest

    def content(self) -> Mapping[str, object]:
        """Return all that takes effect, in plain values."""
        rules = [
            {"name": rule.name, "match": plain_match(rule.match), **plain_terms(rule.terms)} for rule in self.rules
        ]
        return {"default": plain_terms(self.default_terms), "rules": rules}

    def rule_for(self, facts: RequestFacts) -> Rule | None:
        """Return the first rule that matches, None where the default counts."""
        return next((rule for rule in self.rules if rule.match.holds(facts)), None)

    def named_terms(self) -> list[tuple[str, Terms]]:
        """Return the terms of every rule and of the default by name, in order."""
        return [*((rule.name, rule.terms) for rule in self.rules), (DEFAULT_RULE, self.default_terms)]


def plain_match(match: Match) -> dict[str, object]:
    """Return the conditions as plain values."""
    return match.model_dump(mode="json", exclude_none=True)


def plain_terms(terms: Terms) -> dict[str, object]:
    """Return the terms as plain values."""
    rollout, audit = terms.rollout, terms.audit
    return {
        "mode": terms.mode,
        "proposers": None if terms.proposers is None else list(terms.proposers),
        "num_speculative_tokens": terms.num_speculative_tokens,
        "emit": terms.emit,
        "pinned": terms.pinned,
        "shadow_percentage": terms.shadow_percentage,
        "guardrails": [guardrail.model_dump(mode="json", exclude_none=True) for guardrail in terms.guardrails],
        "rollout": None if rollout is None else rollout.model_dump(mode="json"),
        **({} if audit is None else {"audit": audit.model_dump(mode="json")}),
    }
