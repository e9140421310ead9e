"""Conditions hold for the facts they name, and cover each other only where every such fact agrees."""

from datetime import UTC, datetime, timedelta
from itertools import product

import pytest
from pydantic import BaseModel, ValidationError

from prolepsis.control.policy.conditions import (
    Condition,
    Flag,
    HeaderMatch,
    Headers,
    Kinds,
    Languages,
    Names,
    Range,
    TimeWindow,
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


def window(**given: object) -> TimeWindow:
    return TimeWindow.model_validate(given)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("given", "inside", "outside"),
    [
        ({"hours": "08:00-18:00"}, ["2026-11-21T08:00", "2026-11-21T17:59"], ["2026-11-21T07:59", "2026-11-21T18:00"]),
        # 2026-11-20 is a Friday
        ({"days": "mon-fri"}, ["2026-11-20T23:59", "2026-11-23T00:00"], ["2026-11-21T00:00", "2026-11-22T12:00"]),
        ({"days": ["fri-mon"]}, ["2026-11-20T00:00", "2026-11-22T00:00", "2026-11-23T10:00"], ["2026-11-24T00:00"]),
        (
            {"days": "fri", "hours": "22:00-06:00"},
            ["2026-11-20T22:00", "2026-11-21T05:59"],
            ["2026-11-20T05:00", "2026-11-21T06:00", "2026-11-21T23:00"],
        ),
        ({"days": "sun", "hours": "22:00-06:00"}, ["2026-11-23T01:00"], ["2026-11-22T01:00"]),
        # Berlin is an hour ahead in November, two in July
        (
            {"hours": "08:00-09:00", "time_zone": "Europe/Berlin"},
            ["2026-11-21T07:30", "2026-07-21T06:30"],
            ["2026-11-21T08:30", "2026-07-21T07:30"],
        ),
        ({"days": "sat", "time_zone": "Pacific/Auckland"}, ["2026-11-20T12:00"], ["2026-11-21T12:00"]),
        (
            {"days": "fri", "until": "2026-11-20T13:00+01:00"},
            ["2026-11-13T20:00", "2026-11-20T11:59"],
            ["2026-11-19T11:00", "2026-11-20T12:00", "2026-11-27T11:00"],
        ),
    ],
)
def test_times_inside_a_window(given: dict[str, object], inside: list[str], outside: list[str]) -> None:
    one = window(**given)
    assert [one.holds(at(text)) for text in inside] == [True] * len(inside)
    assert [one.holds(at(text)) for text in outside] == [False] * len(outside)


@pytest.mark.parametrize(
    "given",
    [
        {"hours": "8-18"},
        {"hours": "08:00-08:00"},
        {"hours": "24:00-08:00"},
        {"hours": "08:00-24:30"},
        {"days": "friday"},
        {"days": []},
        {"days": 5},
        {"time_zone": "Europe/Atlantis"},
        {"time_zone": "../etc/passwd"},
        {"until": "2026-11-20T13:00"},
        {"until": "friday"},
    ],
)
def test_what_is_refused(given: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        window(**given)


def test_what_holds_for_all_witnesses_holds_over_a_week() -> None:
    ones = [
        window(),
        window(days="mon-fri"),
        window(days="mon", hours="08:00-18:00"),
        window(days="mon-tue", hours="09:00-17:00"),
        window(hours="22:00-06:00"),
        window(days="mon", hours="23:00-05:00"),
        window(hours="08:00-18:00", time_zone="Europe/Berlin"),
        *(window(until=f"2026-11-{end}+00:00") for end in ("18T10:03", "18T10:04", "23T00:00")),
        window(hours="22:00-06:00", until="2026-11-18T10:03+00:00"),
    ]
    week = [at("2026-11-16T00:00") + timedelta(minutes=30 * i) for i in range(7 * 48)]
    num_covered = 0
    for wide in ones:
        for narrow in ones:
            if all(map(wide.holds, narrow.witnesses())):
                num_covered += 1
                assert all(wide.holds(time) for time in week if narrow.holds(time)), f"{wide} and {narrow}"
    least = len(ones) * 2 + 1  # each itself, the first all others, the fifth the sixth
    assert num_covered >= least + 2 + 3, "and those with an end the ones that end before, at night too"
