"""What counts as a call that is not whole."""

import pytest

from prolepsis.control.policy.decision import SpeculationRequest, decide_alone
from prolepsis.control.web.caller import DEVELOPER
from prolepsis.engine.models.answer_formats.formats import AnswerFormats
from prolepsis.engine.models.answer_formats.table import TOOL_FORMATS
from prolepsis.server.deltas import Delta
from prolepsis.server.openai.answer_check import AnswerCheck
from prolepsis.server.openai.bodies import ChatBody, FunctionBody
from prolepsis.server.openai.constraint import ToolUse
from prolepsis.server.openai.prepared import PreparedRequest, RequestContext

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
