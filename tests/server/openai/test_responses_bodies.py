"""The items of a conversation: what truncation leaves out, and how they are shown and read again."""

from typing import Any

import pytest

from prolepsis.core.errors import InvalidParameter
from prolepsis.server.openai.responses_bodies import ResponsesBody, continued, shown_items, to_chat, without_oldest
from prolepsis.server.preparing.bodies import MAX_MESSAGES


def call(name: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": name, "name": "f", "arguments": "{}"}


def output(name: str) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": name, "output": "sun"}


def said(text: str, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": text}


def body(*items: dict[str, Any]) -> ResponsesBody:
    return ResponsesBody.model_validate({"model": "tiny", "input": list(items)})


def short(items: list[Any]) -> list[str]:
    return [getattr(item, "call_id", "") or item.content for item in items]


PARALLEL = [said("one"), call("a"), call("b"), output("a"), output("b"), said("two"), call("c"), output("c")]


@pytest.mark.parametrize(
    ("items", "most", "kept"),
    [
        (PARALLEL, 8, ["one", "a", "b", "a", "b", "two", "c", "c"]),
        (PARALLEL, 7, ["a", "b", "a", "b", "two", "c", "c"]),
        (PARALLEL, 6, ["two", "c", "c"]),
        (PARALLEL, 1, ["c", "c"]),
        ([said("rule", "system"), said("one"), said("more", "developer"), said("two")], 3, ["rule", "more", "two"]),
        ([output("lost"), said("one"), call("open"), said("two")], 2, ["open", "two"]),
    ],
)
def test_no_call_goes_without_its_output(items: list[dict[str, Any]], most: int, kept: list[str]) -> None:
    left = without_oldest(body(*items), lambda some: len(some.input) <= most)
    assert short(left.input) == kept


def test_items_that_are_shown_are_read_as_the_same() -> None:
    custom = {"type": "custom_tool_call", "call_id": "d", "name": "patch", "namespace": "n", "input": "x"}
    thought = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
    given = body(said("one"), said("two", "assistant"), call("a"), output("a"), custom, thought)
    shown = shown_items(given.input)
    assert len({item["id"] for item in shown}) == 6
    assert [item["id"].split("_")[0] for item in shown] == ["msg", "msg", "fc", "fc", "ctc", "rs"]  # type: ignore[attr-defined]
    again = continued(body(said("three")), shown).input
    unnamed = [item.model_copy(update={"id": None, "status": None}) for item in again]
    assert unnamed == [*given.input, *body(said("three")).input]


def test_a_result_of_no_call_is_a_text_of_the_client() -> None:
    added = {"type": "function_call_output", "name": "goal", "namespace": "agent", "output": "Be brief."}
    messages = to_chat(body(said("hi"), call("a"), output("a"), added)).messages
    assert [message.role for message in messages] == ["user", "assistant", "tool", "user"]
    assert messages[-1].content == "Be brief."


def test_a_conversation_has_a_bound() -> None:
    earlier = shown_items(body(*(said("x") for _ in range(MAX_MESSAGES))).input)
    with pytest.raises(InvalidParameter, match=f"{MAX_MESSAGES + 1} items"):
        continued(body(said("x")), earlier)
