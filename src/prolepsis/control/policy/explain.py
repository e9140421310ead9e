"""Explains policies: the differences between two, and the decision on one request with the rules that led to it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isinf
from typing import Any, Literal

from prolepsis.control.policy.decision import UNSTATED, Decision, SpeculationRequest, conflict, decide
from prolepsis.control.policy.model import DEFAULT_RULE, Policy, Rule, Terms, mismatch, plain_match, plain_terms
from prolepsis.core.facts import RequestFacts

_SHOWN_LABELS = ("version", "description", "owner")


@dataclass(frozen=True, slots=True)
class Change:
    """One difference; `field` is empty where it is about a whole rule."""

    kind: Literal["added", "removed", "moved", "changed"]
    rule: str  # its name; empty: the policy itself
    field: str = ""
    old: object = None
    new: object = None
    effective: bool = True  # it may change what a request gets; descriptions, owners and versions do not


def diff(old: Policy, new: Policy) -> list[Change]:
    """Return the changes, those of the policy itself first, then rules in the new order.

    Terms are compared with presets filled in. Rules are known by name, so a rule renamed is one removed and one added.
    Positions count from 1; moved are as few rules as explain the new order.
    """
    before, after = ({rule.name: (i, rule) for i, rule in enumerate(policy.rules, 1)} for policy in (old, new))
    labels = [{name: getattr(policy, name) for name in _SHOWN_LABELS} for policy in (old, new)]
    changes = list(_fields("", *labels, effective=False))
    changes += _fields("", *(policy.plain_settings(given=False) for policy in (old, new)))
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
        changes += _fields(name, {"match": plain_match(old_rule.match)}, {"match": plain_match(rule.match)})
        changes += _fields(name, plain_terms(old_rule.terms), plain_terms(rule.terms))
        labels = [{"description": labelled.description, "owner": labelled.owner} for labelled in (old_rule, rule)]
        changes += _fields(name, *labels, effective=False)
    changes += _fields(DEFAULT_RULE, plain_terms(old.default_terms), plain_terms(new.default_terms))
    return changes


def _described(place: int, rule: Rule) -> dict[str, object]:
    """Return what a rule says beyond the defaults; its mode in any case."""
    defaults = plain_terms(Terms())
    terms = {
        name: value for name, value in plain_terms(rule.terms).items() if name == "mode" or value != defaults.get(name)
    }
    return {"position": place, "match": plain_match(rule.match), **terms}


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


Outcome = Literal["matched", "no_match", "not_reached"]


@dataclass(frozen=True, slots=True)
class Tried:
    rule: str
    outcome: Outcome
    why: str = ""  # the first condition that does not hold


@dataclass(frozen=True, slots=True)
class ExplainedRequest:
    """The decision on one request, as plain values."""

    policy_version: str
    rules: list[Tried]
    rule: str
    terms: dict[str, object]
    refused: dict[str, str] | None  # parameter and message of the refusal
    in_effect: dict[str, Any] | None  # None: the request is refused
    facts: dict[str, object]  # facts of the request that rules may use; an unlimited length is null


def explain(
    policy: Policy,
    facts: RequestFacts,
    requested: SpeculationRequest = UNSTATED,
    refused: Mapping[str, str] | None = None,
    in_force: Mapping[str, Terms] | None = None,
) -> ExplainedRequest:
    """Return the decision on a request with these facts, and the rules that led to it.

    `refused`: parameter and message where a server refuses it before the policy does. `in_force`: terms by rule where
    something was learnt, in place of the policy's.
    """
    tried: list[Tried] = []
    name, terms = DEFAULT_RULE, policy.default_terms
    for rule in policy.rules:
        if name != DEFAULT_RULE:
            tried.append(Tried(rule.name, "not_reached"))
        elif (failed := mismatch(rule.match, facts)) is not None:
            tried.append(Tried(rule.name, "no_match", failed))
        else:
            tried.append(Tried(rule.name, "matched"))
            name, terms = rule.name, rule.terms
    tried.append(Tried(DEFAULT_RULE, "matched" if name == DEFAULT_RULE else "not_reached"))
    against = conflict(name, terms, requested)
    terms = (in_force or {}).get(name, terms)
    refused = refused or (asdict(against) if against else None)
    return ExplainedRequest(
        policy_version=policy.full_version,
        rules=tried,
        rule=name,
        terms=plain_terms(terms),
        refused=None if refused is None else {**refused},
        in_effect=None
        if refused
        else {
            **_effect(decide(name, terms, requested, facts.targeting_key)),
            "recorded": policy.records(facts.tenant),
        },
        facts={
            **asdict(facts),
            "roles": sorted(facts.roles),
            "time": facts.time.isoformat(),
            "flag": sorted(facts.flag),
            "max_tokens": None if isinf(facts.max_tokens) else facts.max_tokens,
        },
    )


def _effect(decision: Decision) -> dict[str, Any]:
    choice = decision.choice
    return {
        "mode": "on" if choice.mode in ("auto", "always") else choice.mode,
        "forced": choice.mode == "always",
        "proposers": choice.proposers,
        "num_speculative_tokens": choice.num_speculative_tokens,
        "emit": decision.emit,
        "sources": dict(decision.sources),
    }
