"""What counts as a call that is not whole, and as an answer that breaks its schema."""

import json
from typing import Any

import httpx
import pytest

from prolepsis.control.policy.decision import SpeculationRequest, decide_alone
from prolepsis.control.web.caller import DEVELOPER
from prolepsis.control.web.reply_headers import WARNING
from prolepsis.core.config import ServerConfig
from prolepsis.core.telemetry.metrics import Metrics
from prolepsis.engine.models.answer_formats.formats import AnswerFormats
from prolepsis.engine.models.answer_formats.table import TOOL_FORMATS
from prolepsis.server.deltas import Delta
from prolepsis.server.openai.answer_check import AnswerCheck
from prolepsis.server.openai.bodies import ChatBody, FunctionBody
from prolepsis.server.openai.constraint import ToolUse
from prolepsis.server.openai.prepared import PreparedRequest, RequestContext
from tests.server.application import build
from tests.server.fakes import ByteTokenizer, FakeEngine

WEATHER = FunctionBody(name="weather")


def checked(form: str, *texts: str) -> bool | None:
    """Return what is found of the calls in an answer that comes in these parts."""
    prepared = PreparedRequest(
        body=ChatBody.model_validate({"model": "m", "messages": [{"role": "user", "content": "Hi"}]}),
        context=RequestContext(DEVELOPER),
        requests=(),
        answer_id="a",
        speculation=decide_alone(SpeculationRequest()),
        tools=ToolUse((WEATHER,), (WEATHER,), required=False, parallel=True),
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


async def post(route: str, text: str, **more: object) -> httpx.Response:
    app = build(ServerConfig(), FakeEngine(text=text), ByteTokenizer(), Metrics())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as http:
        return await http.post(route, json={"model": "tiny", "stream": False, **ASKED[route], **more})


@pytest.mark.parametrize("route", ASKED)
async def test_an_answer_that_breaks_its_schema_is_an_error(route: str) -> None:
    broken = await post(route, "[1, 2, 1]")
    assert broken.status_code == 400
    assert "the answer breaks its schema: $: [1, 2, 1] has non-unique elements" in broken.text
    streamed = await post(route, "[1, 2, 1]", stream=True)
    assert streamed.status_code == 200
    assert "the answer breaks its schema" in streamed.text
    kept = await post(route, "[1, 2, 3]")
    assert kept.status_code == 200, kept.text
    assert "[1, 2, 3]" in kept.text
    assert "checked at the end: uniqueItems" in kept.headers[WARNING]


async def test_an_answer_that_was_cut_is_not_checked() -> None:
    cut = await post("/v1/chat/completions", "[1, 2, 1]", stop=[", 1"])
    assert cut.json()["choices"][0]["finish_reason"] == "length"
    assert json.loads((await post("/v1/chat/completions", "[1, 2] ", stop=[" "])).text)["choices"][0]
