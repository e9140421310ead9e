"""Validation errors become problems with place, value, what is allowed and the nearest name."""

from typing import Annotated, Any, Literal

import pytest
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, RootModel, ValidationError, field_validator

from prolepsis.core.validation import Problem, first_problem, problems, shown_path, shown_value, suggestion


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Range(Strict):
    low: float = 0.0
    high: Annotated[float, Field(ge=0.0)] = 1.0


class Patterns(RootModel[Annotated[tuple[str, ...], Field(min_length=1)]]):
    pass


class Rule(Strict):
    name: Annotated[str, Field(min_length=1, max_length=8, pattern="^[a-z]+$")]
    mode: Literal["on", "off"] = "off"
    tokens: int | Range | None = None
    headers: dict[str, Patterns] = Field(default_factory=dict)
    schema_: str = Field(default="", alias="$schema")
    since: Annotated[AwareDatetime | None, Field(strict=False)] = None
    only: Literal[True] | None = None

    @field_validator("headers")
    @classmethod
    def _few(cls, headers: dict[str, Patterns]) -> dict[str, Patterns]:
        if len(headers) > 1:
            raise ValueError("allowed: one header")
        return headers


class Document(Strict):
    rules: Annotated[list[Rule], Field(max_length=2)]


def found(document: object) -> list[Problem]:
    with pytest.raises(ValidationError) as caught:
        Document.model_validate(document)
    return problems(caught.value, Document, document)


def rule(**fields: Any) -> dict[str, list[dict[str, Any]]]:
    return {"rules": [{"name": "a"} | fields]}


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ({}, "rules is missing"),
        ({"rules": 3}, "rules is 3; allowed: a list"),
        ([], "is []; allowed: a mapping"),
        ({"rules": [{}]}, "rules[0].name is missing"),
        ({"rules": [{"name": "a"}] * 3}, "allowed: at most 2 items"),
        (rule(mode="warp"), "rules[0].mode is 'warp'; allowed: on, off"),
        (rule(mod="on"), "rules[0].mod is unknown; did you mean 'mode'?"),
        (
            rule(zzz=1),
            "zzz is unknown; did you mean 'tokens'? allowed: $schema, headers, mode, name, only, since, tokens",
        ),
        (rule(name="Long"), "rules[0].name is 'Long'; allowed: text that matches ^[a-z]+$"),
        (rule(name="abcdefghi"), "rules[0].name is 'abcdefghi'; allowed: at most 8 characters"),
        (rule(name=""), "rules[0].name is ''; allowed: at least 1 character"),
        (rule(name=7), "rules[0].name is 7; allowed: text, in quotes"),
        (rule(tokens={"high": -1.0}), "rules[0].tokens.high is -1.0; allowed: greater than or equal to 0"),
        (rule(tokens={"hihg": 1.0}), "rules[0].tokens.hihg is unknown; did you mean 'high'?"),
        (rule(headers={"X-Team": ()}), "rules[0].headers.X-Team is []; allowed: one or more"),
        (rule(headers={"a": ("x",), "b": ("y",)}), "allowed: one header"),
        (
            rule(since="yesterday"),
            "rules[0].since is 'yesterday'; allowed: a date and time with its zone, such as 2026",
        ),
        (rule(since="2026-11-24T10:00"), "allowed: a date and time with its zone"),
        (rule(only=False), "rules[0].only is false; allowed: true"),
    ],
)
def test_a_problem_names_place_value_and_what_is_allowed(document: object, text: str) -> None:
    texts = [str(one) for one in found(document)]
    assert any(text in one for one in texts), texts


def test_members_of_a_union_are_one_problem_without_pydantics_names() -> None:
    [problem] = found(rule(tokens="many"))
    assert str(problem) == "rules[0].tokens is 'many'; allowed: a whole number, a mapping"
    assert (problem.path, problem.kind, problem.given) == (("rules", 0, "tokens"), "type", "many")


def test_every_problem_is_reported_and_an_unknown_key_comes_first() -> None:
    document = {"rules": [{"nmae": "a", "mode": "warp"}]}
    assert [one.where for one in found(document)] == ["rules[0].name", "rules[0].mode", "rules[0].nmae"]
    with pytest.raises(ValidationError) as caught:
        Document.model_validate(document)
    first = first_problem(caught.value, Document, document)
    assert (first.kind, str(first)) == ("unknown", "rules[0].nmae is unknown; did you mean 'name'?")


def test_keys_are_spelt_as_in_the_document_and_an_alias_is_a_name() -> None:
    class Header(Strict):
        team: int

    with pytest.raises(ValidationError) as caught:
        Header.model_validate({"team": "x"})
    assert [one.where for one in problems(caught.value, Header, {"Team": "x"})] == ["Team"]
    assert "$schema" in found(rule(zzz=1))[0].names


def test_a_single_value_in_place_of_a_list_has_no_position() -> None:
    class Names(Strict):
        names: list[int]

        @field_validator("names", mode="before")
        @classmethod
        def _listed(cls, value: object) -> object:
            return value if isinstance(value, list) else [value]

    with pytest.raises(ValidationError) as caught:
        Names.model_validate({"names": "x"})
    assert [str(one) for one in problems(caught.value, Names, {"names": "x"})] == [
        "names is 'x'; allowed: a whole number"
    ]


def test_suggestions_and_short_texts() -> None:
    assert suggestion("thraeds", ["threads", "port"]) == "did you mean 'threads'?"
    assert suggestion("x", ["threads", "port"]) == "did you mean 'threads'? allowed: port, threads"
    assert suggestion("x", []) == "allowed: none"
    many = [f"name_{i}" for i in range(50)]
    assert suggestion("other", many).startswith("did you mean 'name_")
    assert shown_path(("a", 0, "b")) == "a[0].b"
    assert shown_value((1, 2)) == "[1, 2]"
    assert len(shown_value("x" * 999)) == 64
