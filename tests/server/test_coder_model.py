"""The coder model over HTTP: calls and forms are valid, and the same in streams, with drafts and without."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import jsonschema
import pytest

from prolepsis.core.config import ServerConfig
from prolepsis.engine.models.load import LoadedModel
from tests.coder_model import CONFIG, SLOW_S, needs_coder
from tests.server.test_default_model import answers

pytestmark = [needs_coder, pytest.mark.timeout(SLOW_S)]
TOOLS: dict[str, dict[str, Any]] = {
    "get_weather": {
        "type": "object",
        "properties": {"town": {"type": "string"}, "days": {"type": "integer", "minimum": 1, "maximum": 7}},
        "required": ["town", "days"],
        "additionalProperties": False,
    },
    "send_mail": {
        "type": "object",
        "properties": {"to": {"type": "string", "maxLength": 30}, "text": {"type": "string", "maxLength": 60}},
        "required": ["to", "text"],
        "additionalProperties": False,
    },
}
SCHEMAS: dict[str, dict[str, Any]] = {
    "records": {
        "type": "array",
        "items": {
            "type": "object",
            "properties": {"id": {"type": "integer", "maximum": 99}, "active": {"type": "boolean"}},
            "required": ["id", "active"],
            "additionalProperties": False,
        },
        "minItems": 2,
        "maxItems": 3,
    },
    "pattern": {
        "type": "object",
        "properties": {
            "date": {"type": "string", "pattern": "^20[0-9]{2}-[01][0-9]-[0-3][0-9]$"},
            "level": {"enum": ["debug", "info", "warning"]},
            "server": {
                "type": "object",
                "properties": {
                    "host": {"type": "string", "minLength": 1, "maxLength": 16},
                    "port": {"type": "integer"},
                },
                "required": ["host"],
                "additionalProperties": False,
            },
        },
        "required": ["date", "level", "server"],
        "additionalProperties": False,
    },
}


EXPECTED = {
    "auto": ["send_mail"],
    "named": ["send_mail"],
    "parallel": ["get_weather", "get_weather"],
    "one call": ["get_weather"],
}
"""Functions called by form; where the model chooses at temperature 1, any of those allowed."""


def asked(content: str, **more: Any) -> dict[str, Any]:
    return {"model": "coder", "messages": [{"role": "user", "content": content}], "max_tokens": 120, "seed": 3} | more


def tool_forms() -> dict[str, dict[str, Any]]:
    tools = [{"type": "function", "function": {"name": name, "parameters": schema}} for name, schema in TOOLS.items()]
    two_towns, mail = (
        "What is the weather in Rome for 3 days and in Oslo for 2 days?",
        "Write to bob@x.org that I am late.",
    )
    named = {"type": "function", "function": {"name": "send_mail"}}
    return {
        "auto": asked(mail, tools=tools, temperature=0),
        "required": asked(mail, tools=tools, tool_choice="required"),
        "named": asked(two_towns, tools=tools, tool_choice=named),
        "parallel": asked(two_towns, tools=tools, tool_choice="required", temperature=0),
        "one call": asked(two_towns, tools=tools, tool_choice="required", parallel_tool_calls=False),
    }


def schema_forms() -> dict[str, dict[str, Any]]:
    return {
        name: asked(
            "Make up an example of a configuration. Answer with JSON only.",
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "example", "schema": schema},
            },
        )
        for name, schema in SCHEMAS.items()
    }


@pytest.fixture(scope="module")
def found(coder: LoadedModel) -> Mapping[str, list[dict[str, Any]]]:
    server = ServerConfig(served_model_names=("coder",), store="none")
    return asyncio.run(answers(coder, CONFIG, server, tool_forms() | schema_forms()))


def test_streams_and_drafts_change_no_answer(found: Mapping[str, list[dict[str, Any]]]) -> None:
    for name, (plain, fast, stream) in found.items():
        assert plain == fast == stream, name


@pytest.mark.parametrize("form", tool_forms())
def test_calls_are_calls_of_the_functions_that_were_allowed(
    form: str, found: Mapping[str, list[dict[str, Any]]]
) -> None:
    plain = found[form][0]
    assert plain["finish"] == "tool_calls"
    assert plain["calls"]
    for name, arguments in plain["calls"]:
        jsonschema.validate(json.loads(arguments), TOOLS[name])
    names = [name for name, _ in plain["calls"]]
    if form in EXPECTED:
        assert names == EXPECTED[form]


@pytest.mark.parametrize("form", SCHEMAS)
def test_structured_answers_are_valid(form: str, found: Mapping[str, list[dict[str, Any]]]) -> None:
    jsonschema.validate(json.loads(found[form][0]["content"]), SCHEMAS[form])
