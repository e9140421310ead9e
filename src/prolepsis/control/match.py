"""What a rule asks of a request: conditions on its facts, all of which must hold."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from math import isinf
from typing import Self

from prolepsis.control.conditions import Condition, Flag, Headers, Kinds, Languages, Names, Range, TrueFlags
from prolepsis.control.facts import RequestFacts
from prolepsis.control.shape import Part
from prolepsis.control.windows import Windows


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
