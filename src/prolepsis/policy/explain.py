"""What changes between two policies: rules added, removed, moved, and changed field by field."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Literal

from prolepsis.core.facts import RequestFacts
from prolepsis.core.requests import SpecMode
from prolepsis.policy.model import DEFAULT_RULE, Emit, Mode, Policy, Rule, Terms, mismatch, plain_match, plain_terms

_SHOWN_LABELS = ("version", "description")


@dataclass(frozen=True, slots=True)
class Change:
    """One difference; `field` is empty where it is about a whole rule."""

    kind: Literal["added", "removed", "moved", "changed"]
    rule: str
    """Its name; empty: the policy itself."""
    field: str = ""
    old: object = None
    new: object = None
    effective: bool = True
    """It may change what a request gets; descriptions and versions do not."""


def diff(old: Policy, new: Policy) -> list[Change]:
    """Return the changes, those of the policy itself first, then rules in the new order.

    Terms are compared with presets filled in. Rules are known by name, so a rule renamed is one removed and one added.
    Positions count from 1; moved are as few rules as explain the new order.
    """
    before, after = _by_name(old), _by_name(new)
    changes = list(_fields("", _labels(old), _labels(new), effective=False))
    for name, (place, rule) in before.items():
        if name not in after:
            changes.append(Change("removed", name, old=_described(place, rule)))
    moved = _moved([name for name in before if name in after], [name for name in after if name in before])
    for name, (place, rule) in after.items():
        if name not in before:
            changes.append(Change("added", name, new=_described(place, rule)))
            continue
        old_place, old_rule = before[name]
        if name in moved:
            changes.append(Change("moved", name, "position", old_place, place))
        changes += _rule(name, old_rule, rule)
    changes += _fields(DEFAULT_RULE, plain_terms(old.default_terms), plain_terms(new.default_terms))
    return changes


def _by_name(policy: Policy) -> dict[str, tuple[int, Rule]]:
    return {rule.name: (place, rule) for place, rule in enumerate(policy.rules, 1)}


def _labels(policy: Policy) -> dict[str, object]:
    return {name: getattr(policy, name) for name in _SHOWN_LABELS}


def _described(place: int, rule: Rule) -> dict[str, object]:
    """Return what a rule says beyond the defaults; its mode in any case."""
    defaults = plain_terms(Terms())
    terms = {
        name: value for name, value in plain_terms(rule.terms).items() if name == "mode" or value != defaults.get(name)
    }
    return {"position": place, "match": plain_match(rule.match), **terms}


def _rule(name: str, old: Rule, new: Rule) -> Iterator[Change]:
    yield from _fields(name, {"match": plain_match(old.match)}, {"match": plain_match(new.match)})
    yield from _fields(name, plain_terms(old.terms), plain_terms(new.terms))
    yield from _fields(name, {"description": old.description}, {"description": new.description}, effective=False)


def _fields(
    rule: str, old: Mapping[str, object], new: Mapping[str, object], *, effective: bool = True
) -> Iterator[Change]:
    before, after = dict(_flat("", old)), dict(_flat("", new))
    for name in [name for name, value in (before | after).items() if value == []]:
        if any(inner.startswith(f"{name}[") for inner in (*before, *after)):  # its items say what changed
            before.pop(name, None)
            after.pop(name, None)
    for name in [*before, *(name for name in after if name not in before)]:
        if before.get(name) != after.get(name):
            yield Change("changed", rule, name, before.get(name), after.get(name), effective)


def _flat(prefix: str, value: object) -> Iterator[tuple[str, object]]:
    """Yield (dotted name, value) of everything inside mappings; lists of plain values stay whole."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _flat(f"{prefix}.{name}" if prefix else str(name), inner)
    elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        for i, item in enumerate(value):
            name = item.get("name", i) if isinstance(item, Mapping) else i
            yield from _flat(f"{prefix}[{name}]", item)
    else:
        yield prefix, value


def _moved(old: Sequence[str], new: Sequence[str]) -> set[str]:
    """Return the names outside a longest common subsequence of two orders of the same names."""
    places = {name: i for i, name in enumerate(old)}
    best: list[list[str]] = []
    for i, name in enumerate(new):
        before = [best[j] for j in range(i) if places[new[j]] < places[name]]
        best.append([*_longest(before), name])
    return set(new) - set(_longest(best))


def _longest(lists: Sequence[list[str]]) -> list[str]:
    lengths = [len(names) for names in lists]
    return lists[lengths.index(max(lengths))] if lists else []


Source = Literal["policy", "caller", "shadow_percentage"]


@dataclass(frozen=True, slots=True)
class Wish:
    """What a request asks of speculation, and may ask by its roles."""

    mode: SpecMode = "auto"
    """auto: as the policy says; on: verify every draft, whether or not it pays."""
    max_depth: int | None = None
    proposer: str | None = None
    emit: Emit | None = None


NO_WISH = Wish()


@dataclass(frozen=True, slots=True)
class Conflict:
    """A wish that the policy does not let pass: it is refused by name, never ignored."""

    param: str
    message: str


@dataclass(frozen=True, slots=True)
class InEffect:
    """What one request gets."""

    mode: Mode
    forced: bool
    """Drafts are verified whether or not that pays."""
    proposers: tuple[str, ...] | None
    num_speculative_tokens: int | None
    emit: Emit
    sources: Mapping[str, Source] = field(default_factory=dict)
    """Who decided each field."""


def conflict(rule: str, terms: Terms, wish: Wish) -> Conflict | None:
    """Return the first wish that contradicts the terms of `rule`, None where none does."""
    if terms.pinned:
        modes = ("auto",) if terms.mode == "on" else ("auto", terms.mode)
        pinned = f"the policy's rule {rule!r} pins it to {terms.mode}"
        if wish.mode not in modes:
            return Conflict("speculation.mode", f"speculation.mode is {wish.mode!r}, but {pinned}")
        if wish.max_depth == 0 and terms.mode != "off":
            return Conflict("speculation.max_depth", f"speculation.max_depth is 0, which turns it off, but {pinned}")
        if wish.emit not in (None, terms.emit):
            message = f"speculation.emit is {wish.emit!r}, but the policy's rule {rule!r} pins it to {terms.emit!r}"
            return Conflict("speculation.emit", message)
    if wish.proposer is not None and terms.proposers is not None and wish.proposer not in terms.proposers:
        allowed = ", ".join(terms.proposers) or "none"
        message = f"speculation.proposer is {wish.proposer!r}; allowed by the policy's rule {rule!r}: {allowed}"
        return Conflict("speculation.proposer", message)
    return None


def in_effect(rule: str, terms: Terms, wish: Wish, targeting_key: str | None = None) -> InEffect:
    """Return what a request gets whose wish has no `conflict` with the terms.

    Mode: `off` is any caller's to ask, `on` and `shadow` an operator's; `auto` leaves it to the policy. Proposers and
    ceiling bound what is asked: a caller narrows them, nobody widens them. Emit: the caller's where one is given.
    `targeting_key` draws the share that drafts in shadow; without one every request does.
    """
    mode, decided = _mode(rule, terms, wish, targeting_key)
    ceiling, depth = terms.num_speculative_tokens, wish.max_depth
    narrower = depth is not None and (ceiling is None or depth < ceiling)
    return InEffect(
        mode=mode,
        forced=wish.mode == "on" and mode == "on",
        proposers=terms.proposers if wish.proposer is None else (wish.proposer,),
        num_speculative_tokens=depth if narrower else ceiling,
        emit=wish.emit or terms.emit,
        sources={
            "mode": decided,
            "proposers": "policy" if wish.proposer is None else "caller",
            "num_speculative_tokens": "caller" if narrower else "policy",
            "emit": "policy" if wish.emit is None else "caller",
        },
    )


def _mode(rule: str, terms: Terms, wish: Wish, targeting_key: str | None) -> tuple[Mode, Source]:
    asked = terms.mode if wish.mode == "auto" else wish.mode
    if wish.max_depth == 0 and asked != "off":
        return "off", "caller"
    if wish.mode != "auto":
        return asked, "caller"
    if (
        terms.mode == "shadow"
        and targeting_key is not None
        and position(rule, targeting_key) >= terms.shadow_percentage
    ):
        return "off", "shadow_percentage"
    return terms.mode, "policy"


_BITS = 64


def position(salt: str, key: str) -> float:
    """Return where `key` lies, in [0, 100): evenly spread over keys, and apart for each `salt`.

    A share of p percent are the keys below p, so a share that grows keeps those it had.
    """
    digest = blake2b(key.encode(), salt=blake2b(salt.encode(), digest_size=16).digest(), digest_size=_BITS // 8)
    return 100.0 * (int.from_bytes(digest.digest()) >> 11) / 2.0 ** (_BITS - 11)


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
