"""Calls that a model writes as fenced JSON, although its chat template has another form for them."""

import re
from collections.abc import Mapping

from prolepsis.engine.models.answer_formats.call_reader import JsonCall, json_call
from prolepsis.engine.models.answer_formats.tool_format import Function

FENCE = "```"
_BLOCK = re.compile(r"```(?:json)?[ \t]*\n(.*?)\n?[ \t]*```", re.DOTALL)
_OTHER = re.compile(r"```(?!(?:j|js|jso|json)?[ \t]*(?:\n\s*(?:\{|$)|$))")


def fenced_call(text: str, functions: Mapping[str, Function], *, ended: bool) -> tuple[int, JsonCall | None] | None:
    """Return how much of `text`, which begins with a fence, is read, and the call that it is; None: it is not complete.

    A block that is no call of a known function is content: its opening fence is what is read.
    """
    if _OTHER.match(text) and text != FENCE:
        return len(FENCE), None
    block = _BLOCK.match(text)
    if block is None:
        return (len(text), None) if ended else None
    call = json_call(block[1])
    return block.end(), call if call is not None and call.name in functions else None
