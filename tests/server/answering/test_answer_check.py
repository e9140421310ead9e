"""What counts as a call that is not whole, and as an answer that breaks its schema."""

import json
from dataclasses import replace
from typing import Any

import httpx2
import pytest

from prolepsis.control.policy.decision import SpeculationRequest, decide_alone
from prolepsis.control.web.caller import DEVELOPER
from prolepsis.control.web.reply_headers import WARNING
from prolepsis.engine.text.answer_formats.formats import AnswerFormats
from prolepsis.engine.text.answer_formats.table import TOOL_FORMATS
from prolepsis.server.answering.answer_check import AnswerCheck
from prolepsis.server.preparing.asked import Asked, AskedForm, ToolUse
from prolepsis.server.preparing.bodies import ChatBody, FunctionBody
from prolepsis.server.preparing.prepared import PreparedRequest, RequestContext
from prolepsis.server.text.deltas import Delta
from tests.fake_client import INFO
from tests.server.fakes import FakeEngine
from tests.world.site import Site

WEATHER = FunctionBody(name="weather")


def checked(form: str, *texts: str) -> bool | None:
    """Return what is found of the calls in an answer that comes in these parts."""
    prepared = PreparedRequest(
        body=ChatBody.model_validate({"model": "m", "messages": [{"role": "user", "content": "Hi"}]}),
        context=RequestContext(DEVELOPER),
        requests=(),
        answer_id="a",
        speculation=decide_alone(SpeculationRequest()),
        asked=Asked(AskedForm(), ToolUse((WEATHER,), (WEATHER,), required=False, parallel=True), None),
        formats=AnswerFormats(TOOL_FORMATS[form]),
    )
    check = AnswerCheck(prepared)
    for i, text in enumerate(texts):
        check.take(Delta(0, text, first=not i))
    check.take(Delta(0, "", first=False, finish_reason="stop"))
    return check.whole_calls


@pytest.mark.parametrize(
    ("form", "text", "found"),
    [
        ("pythonic", "Rome [see the map](x) is sunny.", None),
        ("pythonic", "[weather()]", True),
        ("pythonic", " \n[no call]", False),
        ("llama3-json", 'A call looks like this: {"name": "f"}', None),
        ("llama3-json", '{"name": "no call"}', False),
        ("hermes", "Rome. <tool_call>no call</tool_call>", False),
        ("hermes", "Rome [see the map](x)", None),
    ],
)
def test_marks_inside_of_a_text_are_broken_calls_only_where_they_open_calls(
    form: str, text: str, found: bool | None
) -> None:
    assert checked(form, text) is found
    assert checked(form, *text) is found


UNIQUE = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
FORMAT = {"type": "json_schema", "json_schema": {"name": "u", "schema": UNIQUE}}
ASKED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}], "response_format": FORMAT},
    "/v1/completions": {"prompt": "Hi", "max_tokens": 64, "guided_json": UNIQUE},
    "/v1/responses": {"input": "Hi", "text": {"format": {"type": "json_schema", **FORMAT["json_schema"]}}},  # type: ignore[dict-item]
    "/v1/messages": {
        "messages": [{"role": "user", "content": "Hi"}],
        "max_tokens": 64,
        "output_config": {"format": {"type": "json_schema", "schema": UNIQUE}},
    },
    "/api/chat": {"messages": [{"role": "user", "content": "Hi"}], "format": UNIQUE},
}


async def post(route: str, text: str, **more: object) -> httpx2.Response:
    async with Site(FakeEngine(info=replace(INFO, max_model_len=4096), text=text)).http as http:
        return await http.post(route, json={"model": "tiny", "stream": False, **ASKED[route], **more})


@pytest.mark.parametrize("route", ASKED)
async def test_an_answer_that_breaks_its_schema_is_an_error(route: str) -> None:
    broken = await post(route, "[1, 2, 1]")
    assert broken.status_code == 422
    text = "the answer breaks its schema: $: [1, 2, 1] has non-unique elements (answer_breaks_schema)"
    error = broken.json()["error"]
    shapes = {"/api/chat": text, "/v1/messages": {"type": "api_error", "message": text}}
    param = error["param"] if isinstance(error, dict) and "param" in error else None
    code = {"message": text, "type": "answer_error", "param": param, "code": "answer_breaks_schema"}
    assert error == shapes.get(route, code)
    streamed = await post(route, "[1, 2, 1]", stream=True)
    assert streamed.status_code == 200
    assert "the answer breaks its schema" in streamed.text
    assert "invalid_request" not in streamed.text
    kept = await post(route, "[1, 2, 3]")
    assert kept.status_code == 200, kept.text
    assert "[1, 2, 3]" in kept.text
    assert "checked at the end: uniqueItems" in kept.headers[WARNING]


EMAIL = r"^(?!.*\.\.)[a-z.]+@[a-z]+\.[a-z]+$"
SEND = {"type": "object", "properties": {"to": {"type": "string", "pattern": EMAIL}}}
STRICT = {**SEND, "required": ["to"], "additionalProperties": False}


@pytest.mark.parametrize(("strict", "to", "status"), [(True, "a..b", 422), (True, "a.b", 200), (False, "a..b", 200)])
async def test_arguments_of_strict_tools_are_checked_at_the_end(strict: bool, to: str, status: int) -> None:
    call = json.dumps({"name": "send", "arguments": {"to": f"{to}@c.de"}})
    function = {"name": "send", "parameters": STRICT if strict else SEND, "strict": strict}
    tools = {"tools": [{"type": "function", "function": function}], "response_format": None}
    reply = await post("/v1/chat/completions", f"<tool_call>\n{call}\n</tool_call>", **tools)
    assert reply.status_code == status, reply.text
    assert "does not match" in reply.text or status == 200
    what = "checked at the end" if strict else "without effect"
    assert reply.headers[WARNING] == f'299 - "{what}: send: properties.to.pattern"'


async def test_one_tool_cannot_end_a_request() -> None:
    kinds: list[dict[str, Any]] = [
        {"pattern": r"^\bfoo\b$"},
        {"pattern": r"(a)\1"},
        {"$ref": "https://example.com/x.json"},
        {"pattern": "("},
    ]
    kinds += [{"unevaluatedItems": False}, {"$ref": "#/missing"}, {"patternProperties": {"^(?=a)": False}}]
    parameters = {"type": "object", "properties": {f"p{i}": kind for i, kind in enumerate(kinds)}}
    tools = {"tools": [{"type": "function", "function": {"name": "f", "parameters": parameters}}]}
    reply = await post("/v1/chat/completions", "Hi", **tools, response_format=None)
    assert reply.status_code == 200, reply.text
    for i, kind in enumerate(kinds):
        assert f"f: properties.p{i}.{next(iter(kind))}" in reply.headers[WARNING]
    for kind in (kinds[2], kinds[3], kinds[4], kinds[5]):
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"properties": {"a": kind}}}}
        refused = await post("/v1/chat/completions", "Hi", response_format=form)
        assert refused.status_code == 400
        assert refused.json()["error"] | {"message": ""} == {
            **{"message": "", "type": "invalid_request_error"},
            **{"param": "response_format", "code": "invalid_grammar"},
        }
        assert f"properties.a.{next(iter(kind))}" in refused.text


async def test_an_answer_that_was_cut_is_not_checked() -> None:
    cut = await post("/v1/chat/completions", "[1, 2, 1]", stop=[", 1"])
    assert cut.json()["choices"][0]["finish_reason"] == "length"
    assert json.loads((await post("/v1/chat/completions", "[1, 2] ", stop=[" "])).text)["choices"][0]
