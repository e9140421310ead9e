"""The form of an answer that a body asks for by name, and what of it is not held while the answer is generated."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from prolepsis.core.errors import InvalidGrammar, InvalidParameter
from prolepsis.core.requests import GrammarSpec
from prolepsis.engine.text.grammar.references import rooted
from prolepsis.engine.text.grammar.relaxed import AT_THE_END, held_form, named
from prolepsis.engine.text.grammar.source import as_lark
from prolepsis.server.preparing.bodies import GenerationBody, ResponseFormat, SharedBody, StructuredOutputs
from prolepsis.server.preparing.conversation import read_json
from prolepsis.server.preparing.strict_schema import check_strict
from prolepsis.server.preparing.structural_tags import tagged

_ANY_OBJECT: Mapping[str, object] = {"type": "object"}


@dataclass(frozen=True, slots=True)
class AskedForm:
    """A grammar, and what the client's schema says beyond it."""

    grammar: GrammarSpec | None = None
    checked: Mapping[str, object] | None = None
    """The schema by which the whole answer is checked; None: the grammar holds all of it."""
    warnings: tuple[str, ...] = ()


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
    if wanted.json_schema is None:
        given = _ANY_OBJECT if wanted.schema_ is None else wanted.schema_
        return _json(given, open_objects=open_objects, param="response_format")
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
    closes = wanted.disable_additional_properties
    return _json(_read_schema(wanted.json_), open_objects=open_objects if closes is None else not closes)


def _read_schema(value: object) -> Mapping[str, object]:
    if isinstance(value, str):
        try:
            value = read_json(value, "structured_outputs.json")
        except ValueError as error:
            message = f"structured_outputs.json is not JSON: {error}"
            raise InvalidParameter(message, param="structured_outputs.json") from None
    if not isinstance(value, dict):
        raise InvalidParameter("structured_outputs.json must be a JSON schema", param="structured_outputs.json")
    return value


def _json(schema: Mapping[str, object], *, open_objects: bool, param: str = "structured_outputs") -> AskedForm:
    held = held_form(schema, open_objects=open_objects)
    if held.unknown:
        message = f"the json_schema has {held.unknown[0][:200]}, which can be neither held nor checked"
        allowed = "references inside of it, and the keywords in the API's reference"
        raise InvalidGrammar(f"{message}; allowed: {allowed}", param=param)
    warnings = [*named("without effect", held.annotations), *named(AT_THE_END, held.checked)]
    source = json.dumps(held.schema, ensure_ascii=False)
    return AskedForm(GrammarSpec("json_schema", source), rooted(schema) if held.checked else None, tuple(warnings))
