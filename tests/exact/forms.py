"""Random requests for calls and forms to a tiny model, and what an answer to one may be.

A bias makes marks, quotes and ends likely, as a random model would hardly write them by itself.
"""

import json
import math
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass

import jsonschema

from prolepsis.engine.text.answer_formats.literal_arguments import LiteralArguments
from prolepsis.engine.text.model_tokenizer import ModelTokenizer
from tests.exact.form_server import Answer, Body

PLACE = {
    "type": "object",
    "properties": {"lat": {"type": "integer"}, "tag": {"const": "</think>"}},
    "required": ["lat"],
    "additionalProperties": False,
}
FUNCTIONS: Mapping[str, Mapping[str, object] | None] = {
    "get": None,
    "get_time": {
        "type": "object",
        "properties": {"zone": {"enum": ["Köln", "a <tool_call> b", "it's"]}, "exact": {"type": "boolean"}},
        "required": ["zone"],
        "additionalProperties": False,
    },
    "find": {
        "type": "object",
        "properties": {
            "text": {"type": "string", "maxLength": 5},
            "limit": {"enum": [1, 2.5, None, True]},
            "place": {"$ref": "#/$defs/place"},
            "days": {"type": "array", "items": {"enum": [1, 2]}, "maxItems": 3},
        },
        "required": ["limit"],
        "additionalProperties": False,
        "$defs": {"place": PLACE},
    },
}
"""A function without arguments, whose name begins another's; texts that are marks; values that are no texts."""
TOOLS = [
    {"type": "function", "function": {"name": name, **({} if schema is None else {"parameters": schema})}}
    for name, schema in FUNCTIONS.items()
]
FORM = {
    "type": "object",
    "properties": {"text": {"type": "string", "maxLength": 6}, "kind": {"enum": ["<think>", "b"]}},
    "required": ["text", "kind"],
    "additionalProperties": False,
}
REGEX, CHOICES = r"(<tool_call>|x[a-c]{1,3}</think>)y", ["<think>", "no", "<tool_call>yes"]
LARK = 'start: "a" mark? TAIL\nmark: "<tool_call>" | "</think>"\nTAIL: /[0-9]{1,4}/'
_FORMS: Mapping[str, Body] = {
    "schema": {"response_format": {"type": "json_schema", "json_schema": {"name": "f", "schema": FORM}}},
    "regex": {"structured_outputs": {"regex": REGEX}},
    "choice": {"structured_outputs": {"choice": CHOICES}},
    "lark": {"structured_outputs": {"grammar": LARK}},
}
_USES: Mapping[str, Body] = {
    "auto": {},
    "required": {"tool_choice": "required"},
    "named": {"tool_choice": {"type": "function", "function": {"name": "get_time"}}},
    "one": {"parallel_tool_calls": False},
    "one required": {"parallel_tool_calls": False, "tool_choice": "required"},
    "schema or call": _FORMS["schema"],
}
KINDS = (*_USES, "auto", "auto", *_FORMS)
"""Free text with calls has the most to go wrong."""
_TEXTS = ("hello", "a longer question, with <tool_call> in it", "</think>", "hello world " * 12)


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, as a body of chats without mode and stream."""

    kind: str
    body: Body

    @property
    def is_form(self) -> bool:
        return self.kind in _FORMS

    @property
    def must_call(self) -> bool:
        return self.kind in ("required", "named", "one required")


def drawn(draw: random.Random, tokenizer: ModelTokenizer) -> Asked:
    """Return a request in which marks, quotes and ends are likely."""
    kind, is_greedy = draw.choice(KINDS), draw.random() < 0.5
    body: Body = {
        "messages": [{"role": "user", "content": draw.choice(_TEXTS)}],
        "max_tokens": draw.choice([16, 250, 250, 250]),
        "temperature": 0 if is_greedy else 0.8,
        "seed": draw.randrange(1000),
        "min_tokens": draw.choice([0, 0, 3, 9]),
        "return_token_ids": True,
        "logit_bias": _bias(draw, tokenizer, 4.5 if is_greedy else 0.8 * math.log(tokenizer.vocab_size) + 1),
        **(_FORMS[kind] if kind in _FORMS else {"tools": TOOLS, **_USES[kind]}),
    }
    thinking = draw.choice([None, True, False])
    if thinking is not None:
        body["chat_template_kwargs"] = {"enable_thinking": thinking, "thinking": thinking}
    return Asked(kind, body)


def _bias(draw: random.Random, tokenizer: ModelTokenizer, usual: float) -> dict[str, float]:
    formats = tokenizer.formats
    texts = [] if formats.tools is None else [formats.tools.mark.strip()]
    if formats.reasoning is not None:
        texts += [formats.reasoning.start, formats.reasoning.end]
    texts += ['"', '<|"|>'] if draw.random() < 0.7 else []
    first = {tokenizer.encode(text, add_special_tokens=False)[0] for text in texts}
    likely = [*sorted(first), *tokenizer.eos_token_ids]
    return {str(token): round(usual + draw.uniform(-1, 1.5), 2) for token in likely}


def fault(asked: Asked, answer: Answer, tokenizer: ModelTokenizer) -> str | None:
    """Return why an answer is not what its request may get; None: it is."""
    try:
        _check(asked, answer, tokenizer)
    except (AssertionError, ValueError, jsonschema.ValidationError) as error:
        return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    return None


def _check(asked: Asked, answer: Answer, tokenizer: ModelTokenizer) -> None:
    is_cut, form = answer.finish == "length", tokenizer.formats.tools
    if asked.is_form or (asked.kind == "schema or call" and not answer.calls):
        assert is_cut or _has_form(asked.kind.split()[0], answer.content), f"no form: {answer.content!r}"
    assert answer.finish in ("length", "tool_calls" if answer.calls else "stop"), f"finish is {answer.finish}"
    assert form is not None
    assert len(answer.calls) <= 1 or (asked.kind in KINDS[:3] and form.parallel) or asked.kind == "schema or call", (
        "too many calls"
    )
    if asked.must_call:
        assert not answer.content, f"content {answer.content!r} beside calls"
        assert is_cut or answer.calls, "no call"
    for i, (name, text) in enumerate(answer.calls):
        if i + 1 < len(answer.calls) or not is_cut:
            jsonschema.validate(json.loads(text), _schema(name, form.arguments))
        assert asked.kind != "named" or name == "get_time", name


def _has_form(kind: str, text: str) -> bool:
    match kind:
        case "schema":
            jsonschema.validate(json.loads(text), FORM)
            return True
        case "regex":
            return re.fullmatch(REGEX, text) is not None
        case "choice":
            return text in CHOICES
    return re.fullmatch(r"a(<tool_call>|</think>)?[0-9]{1,4}", text) is not None


def _schema(name: str, arguments: object) -> Mapping[str, object]:
    """Return what the form enforces of a function's arguments: not lengths of texts, where they are literals."""
    schema = FUNCTIONS[name] or {"type": "object", "maxProperties": 0}
    if not isinstance(arguments, LiteralArguments):
        return schema
    return json.loads(json.dumps(schema).replace(', "maxLength": 5', ""))  # type: ignore[no-any-return]  # an object
