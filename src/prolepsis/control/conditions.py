"""Conditions on single facts: each says what holds, and whether it holds wherever another does."""

from collections.abc import Collection, Mapping
from functools import cached_property
from typing import Annotated, Generic, Literal, Protocol, Self, TypeAlias, TypeVar, get_args

from pydantic import Field, RootModel, model_validator

from prolepsis.control.shape import STRICT, Name, Number, Part, one_or_more, spelt

StructuredKind = Literal["none", "any", "json_object", "json_schema", "regex", "choice", "grammar"]
_KINDS = frozenset(get_args(StructuredKind)) - {"any"}
Pattern: TypeAlias = Annotated[str, spelt(r"[^*]+|[^*]*\*", "a text, or the beginning of one and a * behind it")]
"""A text, or its beginning and a *."""
Item = TypeVar("Item", bound=str)
Tag: TypeAlias = Annotated[str, spelt(r"[A-Za-z0-9-]+", "a language tag such as de or de-AT")]


class Condition(Protocol):
    """A condition on one fact."""

    def holds(self, fact: object) -> bool: ...

    def covers(self, other: Self) -> bool:
        """Return whether it certainly holds wherever `other` does."""
        ...


class Listed(RootModel[Annotated[tuple[Item, ...], Field(min_length=1)]], Generic[Item]):
    """One or more texts, any of which will do; one may be given by itself."""

    model_config = STRICT

    @model_validator(mode="before")
    @classmethod
    def _listed(cls, value: object) -> object:
        return one_or_more(value)

    def __str__(self) -> str:
        return " or ".join(self.root)


class Names(Listed[Pattern]):
    """Any of these texts; of a fact that is several texts one is enough."""

    def holds(self, fact: object) -> bool:
        if isinstance(fact, str):
            return fact in self._whole or fact.startswith(self._beginnings)
        return isinstance(fact, Collection) and any(map(self.holds, fact))

    @cached_property
    def _whole(self) -> frozenset[str]:
        return frozenset(pattern for pattern in self.root if not pattern.endswith("*"))

    @cached_property
    def _beginnings(self) -> tuple[str, ...]:
        return tuple(pattern[:-1] for pattern in self.root if pattern.endswith("*"))

    def covers(self, other: Self) -> bool:
        return all(any(_matches_all(mine, theirs) for mine in self.root) for theirs in other.root)


class Languages(Listed[Tag]):
    """Any of these languages; `de` stands for de-AT too (basic filtering, RFC 4647, section 3.3.1)."""

    def holds(self, fact: object) -> bool:
        return isinstance(fact, str) and any(_is_in_language(fact, wanted) for wanted in self.root)

    def covers(self, other: Self) -> bool:
        return all(self.holds(theirs) for theirs in other.root)


class Kinds(Listed[StructuredKind]):
    """Any of these forms of an answer; `any` stands for every form."""

    def holds(self, fact: object) -> bool:
        return fact in self._all

    def covers(self, other: Self) -> bool:
        return self._all >= other._all

    @property
    def _all(self) -> frozenset[str]:
        named = frozenset(self.root)
        return (named | _KINDS - {"none"}) - {"any"} if "any" in named else named


class TrueFlags(Listed[Name]):
    """Any of these feature flags says true of the request."""

    def holds(self, fact: object) -> bool:
        return isinstance(fact, Collection) and any(name in fact for name in self.root)

    def covers(self, other: Self) -> bool:
        return set(self.root) >= set(other.root)


class Flag(RootModel[bool]):
    """true: only requests that have it; false: only those that have not."""

    model_config = STRICT

    def holds(self, fact: object) -> bool:
        return fact is self.root

    def covers(self, other: Self) -> bool:
        return self.root is other.root

    def __str__(self) -> str:
        return str(self.root).lower()


class Range(Part):
    """A number between bounds, both included; one number stands for itself."""

    min: Number | None = None
    max: Number | None = None

    @model_validator(mode="before")
    @classmethod
    def _one_number(cls, value: object) -> object:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return {"min": value, "max": value}
        if not isinstance(value, dict) or not value:
            raise ValueError("allowed: a number, or a mapping of min, max or both")
        return value

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        if self.min is None and self.max is None:
            raise ValueError("allowed: min, max or both")
        return self

    @property
    def empty(self) -> bool:
        return self.min is not None and self.max is not None and self.min > self.max

    def holds(self, fact: object) -> bool:
        if not isinstance(fact, int | float):
            return False
        return (self.min is None or fact >= self.min) and (self.max is None or fact <= self.max)

    def covers(self, other: Self) -> bool:
        from_below = self.min is None or (other.min is not None and other.min >= self.min)
        return from_below and (self.max is None or (other.max is not None and other.max <= self.max))

    def __str__(self) -> str:
        if self.min == self.max:
            return f"{self.min:g}"
        if self.min is None:
            return f"up to {self.max:g}"
        return f"{self.min:g} or more" if self.max is None else f"{self.min:g} to {self.max:g}"


class HeaderMatch(Part):
    """One header; a bare text is `exact`."""

    exact: str | None = None
    prefix: str | None = None
    present: bool | None = None
    """true: any value will do; false: the header is not there."""

    @model_validator(mode="before")
    @classmethod
    def _text(cls, value: object) -> object:
        if isinstance(value, str):
            return {"exact": value}
        if not isinstance(value, dict):
            raise ValueError("allowed: a text, or a mapping of one of exact, prefix, present; numbers need quotes")
        return value

    @model_validator(mode="after")
    def _one(self) -> Self:
        if sum(given is not None for given in (self.exact, self.prefix, self.present)) != 1:
            raise ValueError("allowed: exactly one of exact, prefix, present")
        return self

    def holds(self, fact: object) -> bool:
        if not isinstance(fact, str):
            return self.present is False
        if self.exact is not None:
            return fact == self.exact
        return self.present is True if self.prefix is None else fact.startswith(self.prefix)

    def covers(self, other: Self) -> bool:
        if self.present is not None:
            return self.present is (other.present is not False)
        if other.exact is not None:
            return self.holds(other.exact)
        return self.prefix is not None and other.prefix is not None and other.prefix.startswith(self.prefix)

    def __str__(self) -> str:
        if self.present is not None:
            return "present" if self.present else "absent"
        return self.exact if self.exact is not None else f"{self.prefix}*"


class Headers(RootModel[Annotated[dict[str, HeaderMatch], Field(min_length=1)]]):
    """Every one of these headers; names in any case."""

    model_config = STRICT

    @model_validator(mode="before")
    @classmethod
    def _lower(cls, value: object) -> object:
        if not isinstance(value, dict):
            raise ValueError("allowed: a mapping of header names")
        lower = {str(name).lower(): match for name, match in value.items()}
        if len(lower) < len(value):
            raise ValueError("names a header twice; allowed: once, in any case")
        return lower

    def holds(self, fact: object) -> bool:
        return isinstance(fact, Mapping) and all(match.holds(fact.get(name)) for name, match in self.root.items())

    def covers(self, other: Self) -> bool:
        return all(name in other.root and match.covers(other.root[name]) for name, match in self.root.items())

    def __str__(self) -> str:
        return ", ".join(f"{name}: {match}" for name, match in self.root.items())


def _matches_all(pattern: str, other: str) -> bool:
    """Return whether `pattern` matches all that `other` does."""
    if other.endswith("*"):
        return pattern.endswith("*") and other[:-1].startswith(pattern[:-1])
    return other.startswith(pattern[:-1]) if pattern.endswith("*") else other == pattern


def _is_in_language(tag: str, wanted: str) -> bool:
    tag, wanted = tag.lower(), wanted.lower()
    return tag == wanted or tag.startswith(wanted + "-")
