"""What a body asks of its answer: a form, and calls of tools; and what of both is not held while it is generated."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from prolepsis.core.errors import InvalidGrammar, InvalidParameter
from prolepsis.core.requests import GrammarSpec
from prolepsis.engine.grammar.references import rooted
from prolepsis.engine.grammar.relaxed import AT_THE_END, held_form, named
from prolepsis.engine.grammar.source import as_lark
from prolepsis.server.preparing.bodies import ChatBody, GenerationBody, ResponseFormat, SharedBody, StructuredOutputs
from prolepsis.server.preparing.conversation import read_json
from prolepsis.server.preparing.strict_schema import check_strict
from prolepsis.server.preparing.structural_tags import tagged
from prolepsis.server.preparing.tool_use import NO_TOOLS, ToolUse, tool_use

_ANY_OBJECT: Mapping[str, object] = {"type": "object"}


@dataclass(frozen=True, slots=True)
class AskedForm:
    """A grammar, and what the client's schema says beyond it."""

    grammar: GrammarSpec | None = None
    checked: Mapping[str, object] | None = None
    """The schema by which the whole answer is checked; None: the grammar holds all of it."""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Asked:
    """All that a body asks of its answer."""

    form: AskedForm
    tools: ToolUse
    field: str | None
    """Field of the body that makes a grammar necessary; None: none does."""

    @staticmethod
    def of(body: GenerationBody, *, open_objects: bool) -> "Asked":
        """Read it once; raises `InvalidParameter`. `open_objects` as for `asked_form`."""
        tools, wanted = NO_TOOLS, body.response_format
        if isinstance(body, ChatBody):
            tools = tool_use(body.tools, body.tool_choice, body.parallel_tool_calls, open_objects=open_objects)
        field = "response_format" if wanted is not None and wanted.type != "text" else None
        field = field or ("tools" if tools.callable else None)
        field = field if body.structured_outputs is None else "structured_outputs"
        return Asked(asked_form(body, open_objects=open_objects), tools, field)


def asked_form(body: SharedBody, *, open_objects: bool = False) -> AskedForm:
    """Return the form of the answer that `body` asks for; raises `InvalidParameter`.

    `open_objects`: an object may have other properties where its schema does not say.
    """
    wanted = body.response_format if isinstance(body, GenerationBody) else None
    by_format = wanted is not None and wanted.type != "text"
    if body.structured_outputs is None:
        return _of_response_format(wanted, open_objects=open_objects) if wanted and by_format else AskedForm()
    if by_format:
        message = "structured_outputs and response_format are given; allowed: one of them"
        raise InvalidParameter(message, param="structured_outputs")
    return _of_structured_outputs(body.structured_outputs, open_objects=open_objects)


def _of_response_format(wanted: ResponseFormat, *, open_objects: bool) -> AskedForm:
    if wanted.type == "structural_tag":
        return AskedForm(GrammarSpec("lark", tagged(wanted)))
    schema = wanted.schema_
    if wanted.json_schema is not None:
        schema = wanted.json_schema.schema_
        if wanted.json_schema.strict:
            check_strict(schema or {}, "response_format.json_schema.schema")
    return _json(_ANY_OBJECT if schema is None else schema, open_objects=open_objects, param="response_format")


def _of_structured_outputs(wanted: StructuredOutputs, *, open_objects: bool) -> AskedForm:
    if wanted.regex is not None:
        return AskedForm(GrammarSpec("regex", wanted.regex))
    if wanted.choice is not None:
        return AskedForm(GrammarSpec("choice", json.dumps(wanted.choice, ensure_ascii=False)))
    if wanted.grammar is not None:
        return AskedForm(GrammarSpec("lark", as_lark(wanted.grammar)))
    if wanted.structural_tag is not None:
        return AskedForm(GrammarSpec("lark", tagged(wanted.structural_tag)))
    if wanted.json_object:
        return _json(_ANY_OBJECT, open_objects=open_objects)
    param, schema, closes = "structured_outputs.json", wanted.json_, wanted.disable_additional_properties
    if isinstance(schema, str):
        try:
            read = read_json(schema, param)
        except ValueError as error:
            raise InvalidParameter(f"{param} is not JSON: {error}", param=param) from None
        if not isinstance(read, dict):
            raise InvalidParameter(f"{param} must be a JSON schema", param=param)
        schema = read
    assert schema is not None, "the body has exactly one form"
    return _json(schema, open_objects=open_objects if closes is None else not closes)


def _json(schema: Mapping[str, object], *, open_objects: bool, param: str = "structured_outputs") -> AskedForm:
    held = held_form(schema, open_objects=open_objects)
    if held.unknown:
        message = f"the json_schema has {held.unknown[0][:200]}, which can be neither held nor checked"
        allowed = "references inside of it, and the keywords in the API's reference"
        raise InvalidGrammar(f"{message}; allowed: {allowed}", param=param)
    warnings = [*named("without effect", held.annotations), *named(AT_THE_END, held.checked)]
    source = json.dumps(held.schema, ensure_ascii=False)
    return AskedForm(GrammarSpec("json_schema", source), rooted(schema) if held.checked else None, tuple(warnings))
