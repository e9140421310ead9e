"""Renders a model's chat template in a sandbox, with the names transformers gives templates."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NoReturn

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from prolepsis.core.errors import InvalidParameter, ModelLoadError

Message = Mapping[str, object]


class ChatTemplate:
    """A compiled template and the special tokens it may name."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """Compile `source`; raises `ModelLoadError` where it is no Jinja template."""
        self.source = source
        self._special_tokens = dict(special_tokens)
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        try:
            self._template = environment.from_string(source)
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
        """Return the prompt text of `messages`; raises `InvalidParameter` where the template refuses them."""
        values: dict[str, object] = {**self._special_tokens, **(variables or {})}
        values |= {"messages": list(messages), "add_generation_prompt": add_generation_prompt, "tools": tools}
        try:
            return self._template.render(values)
        except (jinja2.TemplateError, TypeError, ValueError, KeyError) as error:
            raise InvalidParameter(f"the model's chat template refuses messages: {error}", param="messages") from error


def _to_json(value: object, indent: int | None = None, ensure_ascii: bool = False) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
