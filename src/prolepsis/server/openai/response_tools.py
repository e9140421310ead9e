"""Tools of /v1/responses: functions, custom tools and namespaces, all of them functions to the chat."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, TypeAlias

from pydantic import Discriminator, Field, Tag

from prolepsis.control.web.fields import Body, FunctionName, NoEffect, Schema, Served
from prolepsis.core.errors import InvalidParameter
from prolepsis.server.preparing.bodies import (
    MAX_TOOLS,
    AllowedChoice,
    AllowedTools,
    FunctionBody,
    NamedTool,
    ToolBody,
    ToolChoice,
    ToolName,
    ToolWord,
)

TOOL_TYPES = Served(("function", "custom", "namespace"))
"""Others, such as web_search, run at OpenAI."""


class FunctionToolBody(Body):
    type: Literal["function"]
    name: FunctionName
    description: str | None = None
    parameters: Schema | None = None
    strict: bool | None = None

    is_enforced: ClassVar = True

    @property
    def function(self) -> FunctionBody:
        return FunctionBody(
            name=self.name, description=self.description, parameters=self.parameters, strict=self.strict
        )


class CustomFormat(Body):
    type: Literal["text", "grammar"]
    syntax: Literal["lark", "regex"] | None = None
    definition: str | None = None


class CustomToolBody(Body):
    """A tool that takes a text; the model calls a function with one argument."""

    type: Literal["custom"]
    name: FunctionName
    description: str | None = None
    format: CustomFormat | None = None

    @property
    def form(self) -> str:
        return (self.format.definition if self.format else None) or ""

    @property
    def is_enforced(self) -> bool:
        """A regex holds for what the model writes; it may leave a grammar, which it only reads."""
        return not self.form or (self.format is not None and self.format.syntax == "regex")

    @property
    def function(self) -> FunctionBody:
        text = {"type": "string", **({"pattern": f"^(?:{self.form})$"} if self.form and self.is_enforced else {})}
        described = filter(None, (self.description, self.form and f"The input has this form:\n{self.form}"))
        return FunctionBody(
            name=self.name,
            description="\n\n".join(described) or None,
            parameters={
                "type": "object",
                "properties": {"input": text},
                "required": ["input"],
                "additionalProperties": False,
            },
            strict=True,
        )


def by_type(default: str, **kinds: str) -> Discriminator:
    """Return what tells the models of a union apart; an object of no type, or an unknown one, is of the default."""

    def kind_of(value: object) -> str:
        kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
        return kinds.get(kind, default) if isinstance(kind, str) else default

    return Discriminator(kind_of)


CallableTool: TypeAlias = FunctionToolBody | CustomToolBody
_Callable = Annotated[
    Annotated[FunctionToolBody, Tag("FunctionToolBody")] | Annotated[CustomToolBody, Tag("CustomToolBody")],
    by_type("FunctionToolBody", custom="CustomToolBody"),
]


class NamespaceBody(Body):
    """Tools whose calls name the namespace too, as Codex groups those of an MCP server."""

    type: Literal["namespace"]
    name: FunctionName
    description: Annotated[str | None, NoEffect()] = None
    tools: Annotated[list[_Callable], Field(max_length=MAX_TOOLS), TOOL_TYPES]


@dataclass(frozen=True, slots=True)
class NamedCall:
    """What a call of a function of the chat is called here."""

    name: str
    namespace: str | None = None
    is_custom: bool = False

    @property
    def function(self) -> str:
        return f"{self.namespace}.{self.name}" if self.namespace else self.name


class NamedFunction(Body):
    type: Literal["function", "custom"]
    name: FunctionName
    namespace: FunctionName | None = None


class AllowedFunctions(Body):
    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedFunction], Field(min_length=1, max_length=MAX_TOOLS), TOOL_TYPES]


ResponseTool: TypeAlias = Annotated[
    Annotated[FunctionToolBody, Tag("FunctionToolBody")]
    | Annotated[CustomToolBody, Tag("CustomToolBody")]
    | Annotated[NamespaceBody, Tag("NamespaceBody")],
    by_type("FunctionToolBody", custom="CustomToolBody", namespace="NamespaceBody"),
]


def callable_tools(tools: Sequence[CallableTool | NamespaceBody]) -> list[tuple[NamedCall, CallableTool]]:
    """Return tools that may be called, each with what its calls are called; raises `InvalidParameter` for too many."""
    groups = [(tool.name, tool.tools) if isinstance(tool, NamespaceBody) else (None, [tool]) for tool in tools]
    calls = [(NamedCall(tool.name, space, tool.type == "custom"), tool) for space, some in groups for tool in some]
    if len(calls) > MAX_TOOLS:
        raise InvalidParameter(f"tools holds {len(calls)} tools; allowed: at most {MAX_TOOLS}", param="tools")
    return calls


def chat_tool(named: NamedCall, tool: CallableTool) -> ToolBody:
    return ToolBody(type="function", function=tool.function.model_copy(update={"name": named.function}))


def chat_choice(choice: ToolWord | NamedFunction | AllowedFunctions) -> ToolChoice:
    if isinstance(choice, str):
        return choice
    if isinstance(choice, NamedFunction):
        return _named(choice)
    tools = [_named(tool) for tool in choice.tools]
    return AllowedChoice(type="allowed_tools", allowed_tools=AllowedTools(mode=choice.mode, tools=tools))


def _named(tool: NamedFunction) -> NamedTool:
    return NamedTool(type="function", function=ToolName(name=NamedCall(tool.name, tool.namespace).function))
