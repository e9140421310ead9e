"""Bodies of Ollama's API, and the chat or the completion that one stands for."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import AfterValidator, Field, model_validator

from prolepsis.control.web.fields import ClientBody, Schema, TopLogprobs
from prolepsis.server.dialects.dialect import ForeignRequest, LlamaSampling, call, form_of, tool
from prolepsis.server.preparing.bodies import MAX_MESSAGES, MAX_TOOLS, ChatBody, CompletionBody, Message, ResponseFormat


def _not_served(value: object) -> object:
    if value:
        raise ValueError("is not served; allowed: none")
    return value


NotServed: TypeAlias = Annotated[object, AfterValidator(_not_served)]


class OllamaOptions(LlamaSampling):
    num_predict: int | None = None


class OllamaFunction(ClientBody):
    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")]
    description: str | None = None
    parameters: Schema | None = None
    arguments: Schema | None = None  # of a call


class OllamaTool(ClientBody):
    """A tool, or a call of one."""

    type: Literal["function"] = "function"
    id: str | None = None
    function: OllamaFunction


class OllamaMessage(ClientBody):
    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    thinking: str | None = None
    tool_calls: list[OllamaTool] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None

    @model_validator(mode="after")
    def _fits_role(self) -> Self:
        if self.tool_calls and self.role != "assistant":
            raise ValueError(f"role {self.role!r} takes no field 'tool_calls'; allowed: assistant")
        return self


class OllamaRequest(ForeignRequest):
    model: Annotated[str, AfterValidator(lambda name: name.removesuffix(":latest"))]
    """Clients add `:latest` to names without a tag."""
    stream: bool | None = None


class OllamaModelBody(OllamaRequest):
    """What is asked about a model."""

    name: str | None = None  # the older spelling of `model`

    @model_validator(mode="before")
    @classmethod
    def _named(cls, given: dict[str, object]) -> dict[str, object]:
        return {"model": given["name"], **given} if "name" in given else given


class OllamaBody(OllamaRequest):
    options: OllamaOptions | None = None
    format: Literal["", "json"] | Schema | None = None
    think: bool | Literal["low", "medium", "high"] | None = None
    keep_alive: object = None  # taken: a model stays as long as its server
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None


class OllamaChatBody(OllamaBody):
    messages: Annotated[list[OllamaMessage], Field(max_length=MAX_MESSAGES, fail_fast=True)] | None = None
    tools: Annotated[list[OllamaTool], Field(max_length=MAX_TOOLS)] | None = None


class OllamaGenerateBody(OllamaBody):
    prompt: str = ""
    system: str | None = None
    suffix: str | None = None  # what follows the prompt: the model fills the middle
    raw: bool | None = None
    template: NotServed = None
    context: NotServed = None


def parse_chat(body: OllamaChatBody) -> ChatBody:
    """Return the chat that means the same."""
    given = [tool_given.function for tool_given in body.tools or ()]
    tools = [tool(function.name, function.description, function.parameters) for function in given]
    return _chat(body, messages=list(_messages(body.messages or ())), tools=tools or None)


def parse_generate(body: OllamaGenerateBody) -> ChatBody | CompletionBody:
    """Return the chat of one question, or the completion of a raw prompt or of one with what follows it."""
    if body.raw or body.suffix:
        logprobs = (body.top_logprobs or 0) if body.logprobs else None
        return CompletionBody.model_construct(
            prompt=[body.prompt], suffix=body.suffix, logprobs=logprobs, **_shared(body)
        )
    system = [Message(role="system", content=body.system)] if body.system else []
    return _chat(body, messages=[*system, Message(role="user", content=body.prompt)], tools=None)


def _chat(body: OllamaBody, **conversation: Any) -> ChatBody:
    think = None if body.think is None else {"enable_thinking": bool(body.think)}
    effort = {"reasoning_effort": body.think} if isinstance(body.think, str) else {}
    return ChatBody.model_construct(
        chat_template_kwargs=think and {**think, **effort},
        logprobs=body.logprobs,
        top_logprobs=body.top_logprobs if body.logprobs else None,
        **conversation,
        **_shared(body),
    )


def _shared(body: OllamaBody) -> dict[str, Any]:
    options = body.options or OllamaOptions()
    limit, form = options.num_predict or 0, body.format or None
    return {
        "model": body.model,
        "stream": body.stream is not False,
        "max_tokens": limit if limit > 0 else None,
        "seed": None if options.seed == -1 else options.seed,
        "response_format": form_of(form) if isinstance(form, dict) else form and ResponseFormat(type="json_object"),
        **options.sampling,
    }


def _messages(messages: Sequence[OllamaMessage]) -> Iterator[Message]:
    """Yield messages whose calls have ids: a result belongs to the first open call of its name, or to the first."""
    number, waiting = 0, list[tuple[str, str | None]]()
    for message in messages:
        if message.role == "tool":
            named = (
                [open_call for open_call in waiting if open_call[1] == message.tool_name] or waiting or [("call_0", "")]
            )
            call_id = message.tool_call_id or named[0][0]
            waiting = [open_call for open_call in waiting if open_call[0] != call_id]
            yield Message(role="tool", content=message.content, tool_call_id=call_id)
            continue
        calls = [
            call(one.id or f"call_{number + i}", one.function.name, one.function.arguments or {})
            for i, one in enumerate(message.tool_calls or ())
        ]
        number += len(calls)
        waiting += [(made.id, made.function.name) for made in calls]
        thought = message.thinking or None
        yield Message(role=message.role, content=message.content, tool_calls=calls or None, reasoning_content=thought)
