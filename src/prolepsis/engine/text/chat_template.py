"""Chat templates: rendered in a sandbox, with the names that transformers offers to them.

The text of messages stays distinct from the template's own, character by character, as far as it is `GivenText`.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache, wraps
from types import GeneratorType
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment

from prolepsis.core.errors import InvalidParameter, ModelLoadError
from prolepsis.core.given_text import joined, made_of

Message = Mapping[str, object]


class ChatTemplate:
    """A compiled template and the special tokens it may name."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """Compile `source`; raises `ModelLoadError` if it is not a Jinja template."""
        self.source = source
        self._special_tokens = dict(special_tokens)
        try:
            self._template = _compiled(source)
        except jinja2.TemplateError as error:
            raise ModelLoadError(f"the model's chat template is broken: {error}") from error

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, object]] | None = None,
        variables: Mapping[str, object] | None = None,
    ) -> str:
        """Return the prompt text of `messages`, a `GivenText` if they hold such.

        Raises `InvalidParameter` if the template refuses them.
        """
        values: dict[str, object] = {**self._special_tokens, "documents": None, **(variables or {})}
        values |= {
            "messages": [_with_thinking(message) for message in messages],
            "add_generation_prompt": add_generation_prompt,
            "tools": tools,
        }
        try:
            return self._template.render(values)
        except Exception as error:  # a template is the model's code: it fails in any way on what it does not expect
            raise InvalidParameter(f"the model's chat template refuses messages: {error}", param="messages") from error


def _with_thinking(message: Message) -> Message:
    """Return the message with its reasoning under both names that templates read."""
    reasoning = message.get("reasoning_content")
    return message if reasoning is None else {"thinking": reasoning, **message}


@lru_cache(maxsize=8)
def _compiled(source: str) -> jinja2.Template:
    """Return the template, compiled once: it is asked for its formats before it writes prompts."""
    return _Environment().from_string(source)


def one_template(named: Mapping[str, str]) -> str | None:
    """Return templates of one model as one: `tool_use` where there are tools, `rag` for documents, else `default`.

    Without a default there is none. The tags between them change no white space of the templates.
    """
    if "default" not in named:
        return None
    text = named["default"]
    for name, variable in (("rag", "documents"), ("tool_use", "tools")):
        if name in named:
            text = f"{{%+ if {variable} +%}}{_inner(named[name])}{{%+ else +%}}{_inner(text)}{{%+ endif +%}}"
    return text


def _inner(source: str) -> str:
    """Return the source without the end of its last line, which Jinja leaves out at a template's end."""
    return source.removesuffix("\n")


class _CodeGenerator(CodeGenerator):
    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802  # jinja2's name
        """Join the parts of `a ~ b` as all other parts of a text are joined."""
        self.write("environment.concat((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")


class _GenerationTag(Extension):
    """Renders what stands between `{% generation %}` and `{% endgeneration %}`, marks for training, as it stands."""

    tags = {"generation"}  # noqa: RUF012  # jinja2 declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class _Environment(ImmutableSandboxedEnvironment):
    """A sandbox in which no operation loses sight of given text: text of unknown origin counts as given."""

    code_generator_class = _CodeGenerator
    concat = staticmethod(joined)
    intercepted_binops = frozenset({"%", "*"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[loopcontrols, _GenerationTag],
            finalize=lambda value: joined((value,)),
        )
        self.filters = {name: _tracing(function) for name, function in {**self.filters, "tojson": _to_json}.items()}
        self.globals["raise_exception"] = _raise
        self.globals["strftime_now"] = lambda form: datetime.now().strftime(form)

    def call(self, context: Context, called: Any, /, *args: Any, **kwargs: Any) -> Any:
        result = super().call(context, called, *args, **kwargs)
        if isinstance(called, Macro):  # its text was joined part by part
            return result
        owner = getattr(getattr(called, "__wrapped__", called), "__self__", None)
        return _traced(result, owner, args, kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        return _traced(super().call_binop(context, operator, left, right), left, right)


def _tracing(work: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(work)
    def traced(*args: Any, **kwargs: Any) -> Any:
        args = tuple(list(arg) if isinstance(arg, GeneratorType) else arg for arg in args)
        return _traced(work(*args, **kwargs), args, kwargs)

    return traced


def _traced(result: Any, *sources: object) -> Any:
    """Return a text, or a list of texts, that was made of `sources`."""
    if isinstance(result, str):
        return made_of(result, *sources)
    if isinstance(result, list | tuple) and any(isinstance(item, str) for item in result):
        return type(result)(made_of(item, *sources) if isinstance(item, str) else item for item in result)
    return result


def _to_json(
    value: object,
    ensure_ascii: bool = False,  # transformers' order, for templates that rely on it
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
