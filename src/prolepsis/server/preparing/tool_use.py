"""The tools of a request: which the prompt describes, which the answer may call, and what is held of their schemas."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

from prolepsis.core.errors import InvalidParameter
from prolepsis.engine.grammar.references import rooted
from prolepsis.engine.grammar.relaxed import AT_THE_END, held_form
from prolepsis.engine.grammar.relaxed import named as warned
from prolepsis.engine.grammar.validation import broken
from prolepsis.engine.models.answer_formats.fenced import Fits
from prolepsis.engine.models.answer_formats.formats import AnswerFormats
from prolepsis.engine.models.answer_formats.json_arguments import object_schema
from prolepsis.engine.models.answer_formats.tool_format import Function
from prolepsis.server.preparing.bodies import AllowedChoice, FunctionBody, NamedTool, ToolBody, ToolChoice
from prolepsis.server.preparing.strict_schema import check_strict


@dataclass(frozen=True, slots=True)
class ToolUse:
    shown: tuple[FunctionBody, ...]
    """Tools that the prompt describes."""
    callable: tuple[FunctionBody, ...]
    """Tools that the answer may call; empty: none."""
    required: bool
    parallel: bool
    """Several calls in one answer are allowed."""
    warnings: tuple[str, ...] = ()
    """What is not kept of the schemas."""
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
