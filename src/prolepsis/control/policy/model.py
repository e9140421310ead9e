"""The policy: ordered rules with conditions and terms, of which the first that matches counts, and a default."""

from collections.abc import Mapping
from datetime import datetime
from functools import cached_property
from math import isinf
from typing import Annotated, Literal, Self, TypeAlias

from pydantic import BeforeValidator, Field, SerializeAsAny

from prolepsis.control.health.eligibility import EligibilityTerms, StartTerms
from prolepsis.control.policy.conditions import (
    AnyWindow,
    Condition,
    Flag,
    Headers,
    Kinds,
    Languages,
    Names,
    Range,
    Tag,
    ToolChoices,
    TrueFlags,
)
from prolepsis.control.policy.learning_terms import LearningTerms, TenantNames
from prolepsis.control.policy.rollout_terms import GuardrailTerms, Percent, RolloutTerms
from prolepsis.core.ended import AuditContent
from prolepsis.core.facts import UNLISTED, UNSTATED, RequestFacts
from prolepsis.core.stats import Mode
from prolepsis.core.validation import Name, Number, Part, VersionedPart, one_or_more

MOST_LISTED = 12  # domains, and languages: each is a class of its own in each route, tier, form and rule
Listed: TypeAlias = Annotated[tuple[Name, ...], BeforeValidator(one_or_more), Field(max_length=MOST_LISTED)]


class AuditTerms(Part):
    """In place of `audit_sample` and `audit_content` of the server."""

    percentage: Annotated[Number, Field(ge=0, le=100)] = 100.0  # percent of the requests
    content: AuditContent = "digests"


class Match(Part):
    """Conditions by the names of the facts; one that is not given holds for every request."""

    route: Names | None = None
    model: Names | None = None
    tenant: Names | None = None
    tier: Names | None = None
    key: Names | None = None
    roles: Names | None = None
    budget: Names | None = None
    tools: Flag | None = None
    tool_choice: ToolChoices | None = None
    structured_output: Kinds | None = None
    stream: Flag | None = None
    priority: Range | None = None
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
    domain: Names | None = None
    language: Languages | None = None
    headers: Headers | None = None
    flag: TrueFlags | None = None
    time: AnyWindow | None = None

    @cached_property
    def conditions(self) -> Mapping[str, Condition]:
        """The conditions given, by fact, in the order they are tried."""
        named = ((name, getattr(self, name)) for name in type(self).model_fields)
        return {name: condition for name, condition in named if condition is not None}

    def holds(self, facts: RequestFacts) -> bool:
        """Return whether every condition holds; `mismatch` says which does not."""
        return all(condition.holds(getattr(facts, name)) for name, condition in self.conditions.items())

    def covers(self, other: Self) -> bool:
        """Return whether it matches every request that `other` matches, as far as the two say so by themselves."""
        theirs = other.conditions
        return all(
            name in theirs and all(map(mine.holds, theirs[name].witnesses())) for name, mine in self.conditions.items()
        )


def mismatch(match: Match, facts: RequestFacts) -> str | None:
    """Return in words the first condition of `match` that does not hold, None if all hold."""
    failed = next(((name, c) for name, c in match.conditions.items() if not c.holds(getattr(facts, name))), None)
    if failed is None:
        return None
    name, condition = failed
    if isinstance(condition, Headers):
        given = facts.headers
        header, wanted = next((name, of) for name, of in condition.root.items() if not of.holds(given.get(name)))
        return f"headers.{header} is {_shown(given.get(header))}; asked: {wanted}"
    return f"{name} is {_shown(getattr(facts, name))}; asked: {condition}"


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


class TrafficClassTerms(Part):
    """Domains and languages that are part of the name of a traffic class, so that each is judged by its own figures."""

    domain: Listed = ()
    language: Annotated[tuple[Tag, ...], BeforeValidator(one_or_more), Field(max_length=MOST_LISTED)] = ()
    """Tags; `de` stands for de-AT too."""
    detect_language: bool = False  # a language that a request does not state is guessed by its text

    def parts_of(self, facts: RequestFacts) -> Mapping[str, str]:
        """Return the parts of a request's traffic class: each value is a listed one, `other` or `unknown`."""
        parts = {}
        if self.domain:
            parts["domain"] = UNLISTED if facts.domain not in (None, *self.domain) else facts.domain or UNSTATED
        if self.language:
            own = (tag for tag in self.language if Languages((tag,)).holds(facts.language))
            parts["language"] = next(own, UNLISTED) if facts.language else UNSTATED
        return parts


Emit = Literal["block", "token"]
PresetName = Literal["chat", "code", "summarise", "retrieval", "tools", "batch", "search-rewrite"]


class PartTerms(Part):
    """Terms of a part of the answer; they narrow those of the rule and never widen them."""

    mode: Literal["on", "off"] = "on"  # off: it is decoded plainly
    proposers: Annotated[tuple[str, ...], BeforeValidator(one_or_more)] | None = None
    num_speculative_tokens: Annotated[int, Field(ge=1)] | None = None


class InsideTerms(Part):
    call: PartTerms = PartTerms()  # within a tool call, or a form that the answer must have
    text: PartTerms = PartTerms()  # all else


Milliseconds: TypeAlias = Annotated[Number, Field(gt=0)]


class TargetTerms(Part):
    """The `LatencyTarget` of requests that state none."""

    ms_per_token: Milliseconds | None = None
    first_token_ms: Milliseconds | None = None


class Terms(Part):
    """Terms in full; the defaults speculate nowhere."""

    mode: Mode = "off"  # on: where it pays; shadow: drafts are compared with plain decoding, none is verified
    proposers: Annotated[tuple[str, ...], BeforeValidator(one_or_more)] | None = None
    """Those that may draft; None: all that are loaded."""
    num_speculative_tokens: Annotated[int, Field(ge=1)] | None = None
    """Ceiling on drafted tokens a step; None leaves it to the engine."""
    inside: InsideTerms | None = None
    """Terms by part of the answer; None: one for all of it."""
    emit: Emit = "block"
    """token: each token leaves alone, evenly paced, so that a stream does not show what was accepted."""
    pinned: bool = False  # no caller may change the mode: for routes that are regulated
    shadow_percentage: Percent = 100.0
    """Share of the requests that draft in shadow, as a mode or at the beginning of a rollout; the others are plain."""
    guardrails: Annotated[tuple[GuardrailTerms, ...], BeforeValidator(one_or_more)] = ()
    rollout: SerializeAsAny[RolloutTerms] | None = None
    audit: AuditTerms | None = None
    """Terms of the audit log for the requests; None: the server's settings apply."""
    eligible_while: EligibilityTerms | None = None
    """Mode on is shadow for traffic classes whose drafts have not shown this."""
    start: StartTerms | None = None
    """Short drafts for a traffic class of which few drafts were seen; None leaves it to the server's settings."""
    learning: LearningTerms | None = None
    """Heads that learn from the rule's requests; None: nothing is kept of them."""
    writers: Annotated[tuple[str, ...], BeforeValidator(one_or_more)] | None = None
    """Writers that may be asked for whole texts, by name, where a client asks for that; None: all; none: no text
    leaves for one."""
    target: TargetTerms | None = None
    """Times that drafts and the order of reading help to keep; None: those that a request states."""


_OPTIONAL = ("inside", "audit", "eligible_while", "start", "learning", "writers", "target")
"""Terms that are not part of a policy's content unless they are given."""


def control_terms(terms: Terms) -> Terms:
    """Return the terms of the requests that a rollout compares with its canary, where those draft too."""
    assert terms.rollout is not None, "the rule is rolled out"
    assert terms.rollout.against is not None, "the control has terms"
    return terms.model_copy(update=terms.rollout.against.changes)


class GivenTerms(Terms):
    """Terms as the file gives them; what is not given is the preset's, else the default of `Terms`."""

    use: PresetName | None = None  # a preset whose terms these begin with

    def in_full(self) -> Terms:
        """Return the terms with preset and defaults filled in, each field as a whole."""
        base = PRESETS[self.use] if self.use else Terms()
        given = self.model_fields_set & Terms.model_fields.keys()
        return base.model_copy(update={name: getattr(self, name) for name in given})


_FREE = ("client", "corpus", "grammar", "prediction", "prompt_lookup", "suffix")

_FROM_TEXT = Terms(mode="on", proposers=_FREE, num_speculative_tokens=24)
"""Answers that repeat their prompt: what is copied is long, and finding it costs nothing."""

PRESETS: dict[PresetName, Terms] = {
    "chat": Terms(mode="on", num_speculative_tokens=8),
    "code": Terms(mode="on", num_speculative_tokens=24),
    "summarise": _FROM_TEXT,
    "retrieval": _FROM_TEXT,
    "tools": Terms(mode="on", num_speculative_tokens=24),
    "batch": Terms(mode="on", proposers=_FREE, num_speculative_tokens=4),
    "search-rewrite": Terms(mode="on", proposers=_FREE, num_speculative_tokens=8),
}

DEFAULT_RULE = "default"  # the name of the default terms; no rule has this name


_PLAIN_CLASSES = TrafficClassTerms().model_dump(mode="json")


class Rule(GivenTerms):
    name: Name
    description: str = ""
    owner: str = ""  # who answers for it and is called; nothing depends on it
    match: Match

    @cached_property
    def terms(self) -> Terms:
        return self.in_full()


class Policy(VersionedPart):
    """The content of one file. Its digest does not depend on descriptions, owners and the spelling of terms."""

    description: str = ""
    owner: str = ""  # of the policy, and of rules that name none
    never_learn: TenantNames = ()
    """Tenants whose contract forbids it: no rule may name one of them among those who agreed to be learnt from."""
    never_record: TenantNames = ()
    """Tenants of whose requests no record is kept, and no recording for a rehearsal."""
    traffic_classes: TrafficClassTerms = TrafficClassTerms()
    default: GivenTerms = GivenTerms()
    rules: Annotated[tuple[Rule, ...], BeforeValidator(lambda v: tuple(v) if isinstance(v, list) else v)] = ()

    @cached_property
    def default_terms(self) -> Terms:
        return self.default.in_full()

    @cached_property
    def flag_names(self) -> tuple[str, ...]:
        """The feature flags that rules ask, each once."""
        matches = (rule.match.flag for rule in self.rules)
        return tuple(dict.fromkeys(name for flags in matches if flags is not None for name in flags.root))

    def content(self) -> Mapping[str, object]:
        rules = [
            {"name": rule.name, "match": plain_match(rule.match), **plain_terms(rule.terms)} for rule in self.rules
        ]
        return {"default": plain_terms(self.default_terms), "rules": rules, **self.plain_settings()}

    def plain_settings(self, *, given: bool = True) -> dict[str, object]:
        """Return what holds for all rules as plain values; `given`: only what differs from its default."""
        classes = self.traffic_classes.model_dump(mode="json")
        tenants = {name: sorted({*getattr(self, name)}) for name in ("never_learn", "never_record")}
        settings = {**tenants, "traffic_classes": classes}
        return {name: value for name, value in settings.items() if not given or value not in ([], _PLAIN_CLASSES)}

    @property
    def owners(self) -> dict[str, str]:
        """Who answers for each rule, and for the default."""
        return {DEFAULT_RULE: self.owner, **{rule.name: rule.owner or self.owner for rule in self.rules}}

    def rule_for(self, facts: RequestFacts) -> Rule | None:
        """Return the first rule that matches, None where the default counts."""
        return next((rule for rule in self.rules if rule.match.holds(facts)), None)

    def records(self, tenant: str) -> bool:
        """Return whether request records of a tenant may be kept."""
        return tenant not in self.never_record

    def named_terms(self) -> list[tuple[str, Terms]]:
        """Return the terms of every rule and of the default by name, in order."""
        return [*((rule.name, rule.terms) for rule in self.rules), (DEFAULT_RULE, self.default_terms)]


def plain_match(match: Match) -> dict[str, object]:
    """Return the conditions as plain values."""
    return match.model_dump(mode="json", exclude_none=True)


def plain_terms(terms: Terms) -> dict[str, object]:
    plain = terms.model_dump(mode="json", exclude={name for name in _OPTIONAL if getattr(terms, name) is None})
    plain["guardrails"] = [guardrail.model_dump(mode="json", exclude_none=True) for guardrail in terms.guardrails]
    return plain
