"""What a body asks of its answer: a form, and calls of tools; and what of both is not held while it is generated."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

from prolepsis.core.errors import InvalidGrammar, InvalidParameter
from prolepsis.core.requests import GrammarSpec
from prolepsis.engine.text.answer_formats.fenced import Fits
from prolepsis.engine.text.answer_formats.formats import AnswerFormats
from prolepsis.engine.text.answer_formats.json_arguments import object_schema
from prolepsis.engine.text.answer_formats.tool_format import Function
from prolepsis.engine.text.grammar.references import rooted
from prolepsis.engine.text.grammar.relaxed import AT_THE_END, held_form, named
from prolepsis.engine.text.grammar.relaxed import named as warned
from prolepsis.engine.text.grammar.source import as_lark
from prolepsis.engine.text.grammar.validation import broken
from prolepsis.server.preparing.bodies import (
    AllowedChoice,
    ChatBody,
    FunctionBody,
    GenerationBody,
    NamedTool,
    ResponseFormat,
    SharedBody,
    StructuredOutputs,
    ToolBody,
    ToolChoice,
    read_json,
)
from prolepsis.server.preparing.lark import tagged

_MAX_DEPTH = 64
_LISTS = ("anyOf", "prefixItems")
_MAPS = ("properties", "$defs", "definitions")
_SINGLE = ("items",)
_REFUSED = ("allOf", "oneOf", "not", "if", "then", "else", "dependentRequired", "dependentSchemas", "patternProperties")


def check_strict(schema: dict[str, object], param: str) -> None:
    """Raise `InvalidParameter` naming the first place where `schema` leaves the strict subset.

    The root is an object; every object lists all its properties in `required` and has `additionalProperties: false`.
    """
    if schema.get("type") != "object":
        raise InvalidParameter(f"{param}: the root of a strict schema must have type 'object'", param=param)
    for path, part in _parts(schema, param, 0):
        _check_part(path, part, param)


def _parts(schema: dict[str, object], path: str, depth: int) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield every schema inside `schema`, itself first, with where it is."""
    if depth > _MAX_DEPTH:
        raise InvalidParameter(f"{path} is nested deeper than {_MAX_DEPTH} levels, the most allowed", param=path[:200])
    yield path, schema
    for name in (*_LISTS, *_MAPS, *_SINGLE):
        inner = schema.get(name)
        parts: list[tuple[str, object]] = []
        if name in _LISTS and isinstance(inner, list):
            parts = [(f"{path}.{name}[{i}]", part) for i, part in enumerate(inner)]
        elif name in _MAPS and isinstance(inner, dict):
            parts = [(f"{path}.{name}.{key[:64]}", part) for key, part in inner.items()]
        elif name in _SINGLE:
            parts = [(f"{path}.{name}", inner)]
        for where, part in parts:
            if isinstance(part, dict):
                yield from _parts(part, where, depth + 1)


def _check_part(path: str, schema: dict[str, object], param: str) -> None:
    refused = next((name for name in _REFUSED if name in schema), None)
    if refused is not None:
        raise InvalidParameter(f"{path}: strict schemas do not take {refused!r}; allowed: anyOf", param=param)
    kinds = schema.get("type")
    is_object = kinds == "object" or (isinstance(kinds, list) and "object" in kinds) or "properties" in schema
    if not is_object:
        return
    if schema.get("additionalProperties") is not False:
        raise InvalidParameter(f"{path}: strict objects must have 'additionalProperties': false", param=param)
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list):
        raise InvalidParameter(f"{path}: 'properties' must be an object and 'required' a list", param=param)
    listed = {name for name in required if isinstance(name, str)}
    missing = next((name for name in properties if name not in listed), None)
    if missing is not None:
        message = f"{path}: strict objects must list every property in 'required'; {missing[:64]!r} is missing"
        raise InvalidParameter(message, param=param)


_ANY_OBJECT: Mapping[str, object] = {"type": "object"}


@dataclass(frozen=True, slots=True)
class ToolUse:
    shown: tuple[FunctionBody, ...]
    callable: tuple[FunctionBody, ...]  # tools that the answer may call; empty: none
    required: bool
    parallel: bool
    warnings: tuple[str, ...] = ()  # what is not kept of the schemas
    checked: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """By name the schemas of which a whole call's arguments have to hold more than a grammar does."""

    @property
    def functions(self) -> tuple[Function, ...]:
        """Those that may be called, as forms of calls take them."""
        return tuple(Function(tool.name, tool.parameters, strict=bool(tool.strict)) for tool in self.callable)

    def fits(self, formats: AnswerFormats) -> Fits | None:
        """Return what decides on fenced calls; None where the model writes none, or the answer is calls anyway or
        never. The first verdict on a call is work for a thread; it is known from then on.
        """
        if formats.tools is None or not formats.tools.fenced or not self.callable or self.required:
            return None
        schemas = {function.name: object_schema(function) for function in self.functions}
        return cache(lambda call: broken(schemas[call.name], call.arguments) is None)


NO_TOOLS = ToolUse((), (), required=False, parallel=False)


def tool_use(
    tools: Sequence[ToolBody] | None, choice: ToolChoice | None, parallel: bool | None, *, open_objects: bool = False
) -> ToolUse:
    """Read tools and tool choice together; raises `InvalidParameter`.

    `open_objects`: an object may have other properties where its schema does not say.
    """
    functions = tuple(tool.function for tool in tools or ())
    kind = choice if isinstance(choice, str) else choice.type if choice else "auto"
    if not functions:
        if kind not in ("auto", "none"):
            raise InvalidParameter(f"tool_choice is {kind!r}, but tools is empty; allowed: none", param="tool_choice")
        return NO_TOOLS
    names = [function.name for function in functions]
    double = next((name for name in names if names.count(name) > 1), None)
    if double is not None:
        raise InvalidParameter(f"tools names {double!r} twice; allowed: different names", param="tools")
    for i, function in enumerate(functions):
        if function.strict:
            check_strict(function.parameters or {}, f"tools[{i}].function.parameters")
    if kind == "none":
        return ToolUse(functions, (), required=False, parallel=False)
    chosen = _chosen(choice, functions)
    mode = choice.allowed_tools.mode if isinstance(choice, AllowedChoice) else kind
    lost, at_the_end, checked = list[str](), list[str](), dict[str, Mapping[str, object]]()
    callable_tools = list[FunctionBody]()
    for tool in chosen:
        held = held_form(tool.parameters or {}, open_objects=open_objects)
        if tool.strict and held.unknown:
            message = f"the strict parameters of {tool.name!r} have {held.unknown[0][:200]}"
            raise InvalidParameter(f"{message}; allowed: what can be held or checked", param="tools")
        if tool.strict and held.checked:
            checked[tool.name] = rooted(tool.parameters or {})
            at_the_end += [f"{tool.name}: {place}" for place in held.checked]
        places = held.annotations if tool.strict else (*held.annotations, *held.checked, *held.unknown)
        lost += [f"{tool.name}: {place}" for place in places]
        callable_tools.append(tool.model_copy(update={"parameters": tool.parameters and held.schema}))
    return ToolUse(
        functions,
        tuple(callable_tools),
        required=mode in ("required", "function"),
        parallel=parallel is not False and kind != "function",
        warnings=(*warned("without effect", lost), *warned(AT_THE_END, at_the_end)),
        checked=checked,
    )


def _chosen(choice: ToolChoice | None, functions: tuple[FunctionBody, ...]) -> tuple[FunctionBody, ...]:
    if choice is None or isinstance(choice, str):
        return functions
    chosen = [choice] if isinstance(choice, NamedTool) else choice.allowed_tools.tools
    names = [tool.function.name for tool in chosen]
    known = {function.name: function for function in functions}
    unknown = next((name for name in names if name not in known), None)
    if unknown is not None:
        message = f"tool_choice names {unknown!r}; allowed: the names in tools ({', '.join(known)})"
        raise InvalidParameter(message[:600], param="tool_choice")
    return tuple(known[name] for name in dict.fromkeys(names))


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
    field: str | None  # field of the body that makes a grammar necessary; None: none does

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


NOTHING = Asked(AskedForm(), NO_TOOLS, None)


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
