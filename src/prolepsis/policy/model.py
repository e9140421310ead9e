"""The policy: ordered rules with conditions and terms, of which the first that matches counts, and a default."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from functools import cached_property
from hashlib import sha256
from math import isinf
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field

from prolepsis.core.facts import RequestFacts
from prolepsis.core.validation import Name, Number, Part, one_or_more, spelt
from prolepsis.policy.conditions import Condition, Flag, Headers, Kinds, Languages, Names, Range, TrueFlags, Windows
from prolepsis.policy.rollout_terms import GuardrailTerms, Percent, RolloutTerms

Content = Literal["digests", "text", "tokens"]
"""Of prompt and answer: their salted digests only; their text too, redacted; their tokens too, where redaction finds
nothing in their text, so that the request can be decoded again."""


class AuditTerms(Part):
    """In place of `audit_sample` and `audit_content` of the server."""

    percentage: Annotated[Number, Field(ge=0, le=100)] = 100.0
    """Percent of the requests."""
    content: Content = "digests"


class Match(Part):
    """Conditions by the names of the facts; one that is not given holds for every request."""

    route: Names | None = None
    model: Names | None = None
    tenant: Names | None = None
    tier: Names | None = None
    key: Names | None = None
    roles: Names | None = None
    tools: Flag | None = None
    structured_output: Kinds | None = None
    stream: Flag | None = None
    n: Range | None = None
    prompt_tokens: Range | None = None
    max_tokens: Range | None = None
    temperature: Range | None = None
    top_p: Range | None = None
    top_k: Range | None = None
    min_p: Range | None = None
    repetition_penalty: Range | None = None
    presence_penalty: Range | None = None
    frequency_penalty: Range | None = None
    language: Languages | None = None
    headers: Headers | None = None
    flag: TrueFlags | None = None
    time: Windows | None = None

    @cached_property
    def conditions(self) -> Mapping[str, Condition]:
        """The conditions given, by fact, in the order they are tried."""
        named = ((name, getattr(self, name)) for name in type(self).model_fields)
        return {name: condition for name, condition in named if condition is not None}

    def holds(self, facts: RequestFacts) -> bool:
        """Return whether every condition holds; `mismatch` says which does not."""
        return all(condition.holds(getattr(facts, name)) for name, condition in self.conditions.items())

    def covers(self, other: Self) -> bool:
        """Return whether it certainly matches every request that `other` matches.

        False where that cannot be told from the two alone.
        """
        theirs = other.conditions
        return all(name in theirs and mine.covers(theirs[name]) for name, mine in self.conditions.items())


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The first condition that does not hold."""

    fact: str
    given: str
    asked: str

    def __str__(self) -> str:
        return f"{self.fact} is {self.given}; asked: {self.asked}"


def mismatch(match: Match, facts: RequestFacts) -> Mismatch | None:
    """Return the first condition of `match` that does not hold, None where all hold."""
    for name, condition in match.conditions.items():
        fact = getattr(facts, name)
        if condition.holds(fact):
            continue
        if isinstance(condition, Headers):
            return _header_mismatch(condition, facts)
        return Mismatch(name, _shown(fact), str(condition))
    return None


def _header_mismatch(headers: Headers, facts: RequestFacts) -> Mismatch:
    wrong = (name for name, match in headers.root.items() if not match.holds(facts.headers.get(name)))
    name = next(wrong)
    return Mismatch(f"headers.{name}", _shown(facts.headers.get(name)), str(headers.root[name]))


def _shown(fact: object) -> str:
    if fact is None or fact in ("", frozenset()):
        return "not given"
    if isinstance(fact, bool):
        return str(fact).lower()
    if isinstance(fact, float):
        return "unlimited" if isinf(fact) else f"{fact:g}"
    if isinstance(fact, frozenset):
        return ", ".join(sorted(fact))
    return f"{fact:%a %Y-%m-%d %H:%M %Z}" if isinstance(fact, datetime) else str(fact)


Mode = Literal["off", "shadow", "on"]
Emit = Literal["block", "token"]
PresetName = Literal["chat", "code", "summarise", "retrieval", "tools", "batch"]


@dataclass(frozen=True, slots=True)
class Terms:
    """Terms in full; the defaults speculate nowhere."""

    mode: Mode = "off"
    """on: where it pays; shadow: drafts are compared with plain decoding, none is verified."""
    proposers: tuple[str, ...] | None = None
    """Those that may draft; None: all that are loaded."""
    num_speculative_tokens: int | None = None
    """Ceiling on drafted tokens a step; None leaves it to the engine."""
    emit: Emit = "block"
    """token: each token leaves alone, evenly paced, so that a stream does not show what was accepted."""
    pinned: bool = False
    """No caller may change the mode: for routes that are regulated."""
    shadow_percentage: float = 100.0
    """Share of the requests that draft in shadow, as a mode or at the beginning of a rollout; the others are plain."""
    guardrails: tuple[GuardrailTerms, ...] = ()
    rollout: RolloutTerms | None = None
    audit: AuditTerms | None = None
    """What the audit log keeps of the requests; None leaves it to the server's settings."""


class GivenTerms(Part):
    """Terms as the file gives them; what is not given is the preset's, else the default of `Terms`."""

    use: PresetName | None = None
    """A preset whose terms these begin with."""
    mode: Mode = "off"
    proposers: Annotated[tuple[str, ...], BeforeValidator(one_or_more)] | None = None
    num_speculative_tokens: Annotated[int, Field(ge=1)] | None = None
    emit: Emit = "block"
    pinned: bool = False
    shadow_percentage: Percent = 100.0
    guardrails: Annotated[tuple[GuardrailTerms, ...], BeforeValidator(one_or_more)] = ()
    rollout: RolloutTerms | None = None
    audit: AuditTerms | None = None

    def over(self, base: Terms) -> Terms:
        """Return `base` with what is given here in its place, each field as a whole."""
        values = {f.name: getattr(self if f.name in self.model_fields_set else base, f.name) for f in fields(Terms)}
        return Terms(**values)


_FREE = ("grammar", "prediction", "prompt_lookup", "suffix")

_FROM_TEXT = Terms(mode="on", proposers=_FREE, num_speculative_tokens=16)
"""Answers that repeat their prompt: what is copied is long, and finding it costs nothing."""

PRESETS: dict[PresetName, Terms] = {
    "chat": Terms(mode="on", num_speculative_tokens=8),
    "code": Terms(mode="on", num_speculative_tokens=16),
    "summarise": _FROM_TEXT,
    "retrieval": _FROM_TEXT,
    "tools": Terms(mode="on", num_speculative_tokens=16),
    "batch": Terms(mode="on", proposers=_FREE, num_speculative_tokens=4),
}


def in_full(given: GivenTerms) -> Terms:
    """Return the terms with preset and defaults filled in."""
    return given.over(PRESETS[given.use] if given.use else Terms())


DEFAULT_RULE = "default"
"""The name of the default terms; no rule has this name."""
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
    """The content of one file."""

    version: Annotated[Label, BeforeValidator(label_text)] = ""
    """A label for this state of the file; nothing depends on it."""
    description: str = ""
    default: GivenTerms = GivenTerms()
    rules: Annotated[tuple[Rule, ...], BeforeValidator(lambda v: tuple(v) if isinstance(v, list) else v)] = ()

    @cached_property
    def default_terms(self) -> Terms:
        return in_full(self.default)

    @cached_property
    def digest(self) -> str:
        """The version of the content: equal if rules, order and terms are, in any spelling.

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
