"""Which tools a request lets the model call, and whether it must."""

from collections.abc import Sequence
from dataclasses import dataclass

from prolepsis.core.errors import InvalidParameter
from prolepsis.server.strict_schema import check_strict
from prolepsis.server.tool_bodies import FunctionBody, ToolBody, ToolChoiceBody


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Tools the model is told of, those it may call, and how."""

    shown: tuple[FunctionBody, ...]
    callable: tuple[FunctionBody, ...]
    """Empty: none may be called."""
    required: bool
    parallel: bool
    """Several calls in one answer are allowed."""


NO_TOOLS = ToolUse((), (), required=False, parallel=False)


def tool_use(tools: Sequence[ToolBody] | None, choice: ToolChoiceBody | None, parallel: bool | None) -> ToolUse:
    """Read tools and tool choice together; raises `InvalidParameter`."""
    functions = tuple(tool.function for tool in tools or ())
    kind = choice.type if choice else "auto"
    if not functions:
        if kind not in ("auto", "none"):
            raise InvalidParameter(f"tool_choice is {kind!r}, but tools is empty; allowed: none", param="tool_choice")
        return NO_TOOLS
    _check(functions)
    if kind == "none":
        return ToolUse(functions, (), required=False, parallel=False)
    named = _named(choice, functions)
    required = kind in ("required", "function") or (
        choice is not None and choice.allowed_tools is not None and choice.allowed_tools.mode == "required"
    )
    return ToolUse(functions, named, required=required, parallel=parallel is not False and kind != "function")


def _check(functions: Sequence[FunctionBody]) -> None:
    names = [function.name for function in functions]
    double = next((name for name in names if names.count(name) > 1), None)
    if double is not None:
        raise InvalidParameter(f"tools names {double!r} twice; allowed: different names", param="tools")
    for i, function in enumerate(functions):
        if function.strict:
            check_strict(function.parameters or {}, f"tools[{i}].function.parameters")


def _named(choice: ToolChoiceBody | None, functions: tuple[FunctionBody, ...]) -> tuple[FunctionBody, ...]:
    if choice is None or choice.type in ("auto", "required"):
        return functions
    if choice.function is not None:
        names = [choice.function.name]
    else:
        names = [tool.function.name for tool in choice.allowed_tools.tools] if choice.allowed_tools else []
    known = {function.name: function for function in functions}
    unknown = next((name for name in names if name not in known), None)
    if unknown is not None:
        message = f"tool_choice names {unknown!r}; allowed: the names in tools ({', '.join(known)})"
        raise InvalidParameter(message[:600], param="tool_choice")
    return tuple(known[name] for name in dict.fromkeys(names))
