"""Conditions hold for the facts they name, and cover each other only where every such fact agrees."""

from itertools import product

import pytest
from pydantic import BaseModel

from prolepsis.control.policy.conditions import (
    Condition,
    Flag,
    HeaderMatch,
    Headers,
    Kinds,
    Languages,
    Names,
    Range,
    ToolChoices,
    TrueFlags,
)


def made(kind: type[BaseModel], value: object) -> Condition:
    return kind.model_validate(value)  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("kind", "value", "holds", "fails"),
    [
        (Names, "acme", ["acme"], ["acme2", "", None]),
        (Names, ["acme*", "b"], ["acme", "acme-x", "b"], ["ACME", "bc", "ac"]),
        (Names, ["operator"], [frozenset({"client", "operator"})], [frozenset({"client"}), frozenset()]),
        (Names, "*", ["", "any"], [None]),
        (Languages, ["de", "pt-BR"], ["de", "DE-at", "pt-br"], ["den", "pt", "pt-PT", None]),
        (Kinds, "any", ["json_schema", "regex", "grammar"], ["none"]),
        (Kinds, ["none", "choice"], ["none", "choice"], ["regex"]),
        (ToolChoices, ["required", "named"], ["required", "named"], ["auto", "none", None]),
        (TrueFlags, ["a", "b"], [frozenset({"b"}), frozenset({"a", "c"})], [frozenset(), frozenset({"ab"}), None]),
        (Flag, True, [True], [False, None]),
        (Flag, False, [False], [True]),
        (Range, {"min": 2, "max": 4}, [2, 3.5, 4], [1, 4.1, None]),
        (Range, {"max": 0.3}, [0, 0.3, -1], [0.31, float("inf")]),
        (Range, {"min": 5}, [5, float("inf")], [4]),
        (Range, 0, [0, 0.0], [0.1]),
        (HeaderMatch, "ide", ["ide"], ["IDE", "ide2", None]),
        (HeaderMatch, {"prefix": "a-"}, ["a-", "a-b"], ["ab", None]),
        (HeaderMatch, {"present": True}, ["", "x"], [None]),
        (HeaderMatch, {"present": False}, [None], ["", "x"]),
        (Headers, {"X-App": "ide", "x-b": {"present": False}}, [{"x-app": "ide"}], [{}, {"x-app": "ide", "x-b": ""}]),
    ],
)
def test_conditions_hold(kind: type[BaseModel], value: object, holds: list[object], fails: list[object]) -> None:
    condition = made(kind, value)
    assert [condition.holds(fact) for fact in holds] == [True] * len(holds)
    assert [condition.holds(fact) for fact in fails] == [False] * len(fails)


FACTS: dict[type[BaseModel], list[object]] = {
    Names: ["", "a", "ab", "abc", "b", "bc"],
    Languages: ["de", "de-AT", "de-AT-x", "en", "fr"],
    Kinds: ["none", "json_object", "json_schema", "regex", "choice", "grammar"],
    ToolChoices: ["none", "auto", "required", "named", "allowed"],
    TrueFlags: [frozenset(), frozenset({"a"}), frozenset({"b"}), frozenset({"a", "b"}), frozenset({"c"})],
    Flag: [True, False],
    Range: [-1, 0, 0.5, 1, 2, 3, float("inf")],
    Headers: [{}, {"x": ""}, {"x": "a"}, {"x": "ab"}, {"x": "b"}, {"y": "b"}, {"x": "a", "y": "b"}],
}
VALUES: dict[type[BaseModel], list[object]] = {
    Names: ["a", "a*", "ab*", "*", ["a", "b"], ["a*", "b*"]],
    Languages: ["de", "de-AT", ["de", "en"], "fr"],
    Kinds: ["any", "none", "regex", ["none", "any"], ["json_object", "json_schema"]],
    ToolChoices: ["none", ["auto", "required"], ["none", "auto", "required"]],
    TrueFlags: ["a", "b", ["a", "b"], "c"],
    Flag: [True, False],
    Range: [0, {"min": 0}, {"max": 2}, {"min": 0, "max": 2}, {"min": 0.5, "max": 1}, {"max": 0}],
    Headers: [
        *(
            {"x": match}
            for match in ("a", "ab", {"prefix": "a"}, {"prefix": ""}, {"present": True}, {"present": False})
        ),
        {"x": "a", "y": "b"},
    ],
}


def covers(wide: Condition, narrow: Condition) -> bool:
    return all(map(wide.holds, narrow.witnesses()))


@pytest.mark.parametrize("kind", list(VALUES))
def test_what_holds_for_all_witnesses_holds_wherever_the_other_does(kind: type[BaseModel]) -> None:
    for mine, theirs in product(VALUES[kind], repeat=2):
        wide, narrow = made(kind, mine), made(kind, theirs)
        implied = all(wide.holds(fact) for fact in FACTS[kind] if narrow.holds(fact))
        if covers(wide, narrow):
            assert implied, f"{mine} does not hold wherever {theirs} does"
        if mine == theirs:
            assert covers(wide, narrow)


@pytest.mark.parametrize(
    ("kind", "wide", "narrow"),
    [
        (Names, ["a*", "b"], ["ab*", "b"]),
        (Languages, "de", "de-AT"),
        (Kinds, "any", ["regex", "choice"]),
        (TrueFlags, ["a", "b"], "b"),
        (Range, {"min": 1}, {"min": 1, "max": 2}),
        (Headers, {"x": {"prefix": "a"}}, {"x": {"prefix": "ab"}}),
        (Headers, {"x": {"present": True}}, {"x": "a", "y": "b"}),
    ],
)
def test_a_wider_condition_covers_a_narrower_one_only(kind: type[BaseModel], wide: object, narrow: object) -> None:
    assert covers(made(kind, wide), made(kind, narrow))
    assert not covers(made(kind, narrow), made(kind, wide))
