"""Request bodies of chat completions and text completions: messages, tools, formats and parameters."""

from typing import Annotated, Literal, Self, TypeAlias

from jiter import from_json
from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from prolepsis.control.web.fields import (
    MAX_ALLOWED_TOKENS,
    MAX_LOGPROB_TOKENS,
    Body,
    ClientBody,
    Count,
    LogitBias,
    MaxTokens,
    MaxTokensOrNone,
    Metadata,
    ModelName,
    Name,
    NoEffect,
    Priority,
    Prompts,
    PromptTokens,
    QualifiedName,
    Samples,
    Schema,
    Seed,
    Served,
    Stop,
    Text,
    Token,
    TopK,
    TopLogprobs,
)
from prolepsis.core.errors import InvalidParameter
from prolepsis.core.requests import SpecMode
from prolepsis.core.validation import Number

MAX_DEPTH = 200
"""The parser's own limit; it holds for the body itself too."""


def read_json(text: str, param: str) -> object:
    """Return the value of `text`; raises `ValueError`, and `InvalidParameter` where it is nested too deeply."""
    try:
        value: object = from_json(text.encode())
    except ValueError as error:
        if "recursion limit" in str(error):
            message = f"{param} is nested too deeply; allowed: {MAX_DEPTH} levels"
            raise InvalidParameter(message, param=param) from None
        raise
    return value


class CalledFunctionBody(Body):
    name: QualifiedName
    arguments: str  # JSON, as the model wrote it


class ToolCallBody(Body):
    id: str
    type: Literal["function"] = "function"
    function: CalledFunctionBody


ROLES = ("system", "developer", "user", "assistant", "tool")
"""Roles that every chat template is given; others need one that shows them."""


class Message(Body):
    role: Name
    content: Text | None = None
    tool_calls: Annotated[list[ToolCallBody], Field(max_length=128)] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    reasoning_content: Text | None = None
    """Reasoning of an earlier answer; the model sees it if its chat template uses it, as with `name`."""

    @model_validator(mode="after")
    def _fits_role(self) -> Self:
        if self.tool_calls and self.role != "assistant":
            raise ValueError(f"role {self.role!r} takes no field 'tool_calls'; allowed: assistant")
        if (self.tool_call_id is not None) != (self.role == "tool"):
            raise ValueError("'tool_call_id' is needed in messages of role 'tool', and only there")
        if self.content is None and not self.tool_calls:
            raise ValueError("'content' must be a string or a list of text parts")
        return self


MAX_TOOLS = 128
MAX_DOCUMENTS = 1024
MAX_MESSAGES = 2048


class FunctionBody(Body):
    name: QualifiedName
    description: str | None = None
    parameters: Schema | None = None  # JSON schema of the arguments; without one the function takes none
    strict: bool | None = None


class ToolBody(Body):
    type: Literal["function"]
    function: FunctionBody


class ToolName(Body):
    name: QualifiedName


class NamedTool(Body):
    type: Literal["function"]
    function: ToolName


class AllowedTools(Body):
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(min_length=1, max_length=MAX_TOOLS)]


class AllowedChoice(Body):
    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


Tools: TypeAlias = Annotated[list[ToolBody], Field(max_length=MAX_TOOLS)]
ToolWord = Literal["none", "auto", "required"]
ToolChoice: TypeAlias = ToolWord | NamedTool | AllowedChoice


class JsonSchemaBody(Body):
    name: Name
    description: str | None = None
    schema_: Annotated[Schema | None, Field(alias="schema")] = None
    strict: bool | None = None


class TagBody(Body):
    begin: Annotated[str, Field(min_length=1)]
    schema_: Annotated[Schema | None, Field(alias="schema")] = None
    end: str = ""


class TagFields(Body):
    """Free text in which a trigger begins a tag: its begin, JSON of its schema, its end; or a format."""

    structures: Annotated[list[TagBody] | None, Field(min_length=1, max_length=MAX_TOOLS)] = None
    triggers: Annotated[list[Annotated[str, Field(min_length=1)]] | None, Field(min_length=1, max_length=MAX_TOOLS)] = (
        None
    )
    format: Schema | None = None

    @property
    def is_whole(self) -> bool:
        return all((given is None) != (self.format is None) for given in (self.structures, self.triggers))


class ResponseFormat(TagFields):
    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchemaBody | None = None
    schema_: Annotated[Schema | None, Field(alias="schema")] = None  # of a json_object, as llama.cpp has it

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.schema_ is not None and self.type != "json_object":
            raise ValueError(f"type {self.type!r} takes no 'schema'")
        if (self.json_schema is not None) != (self.type == "json_schema"):
            raise ValueError(f"type {self.type!r} {'needs' if self.json_schema is None else 'takes no'} 'json_schema'")
        if self.is_whole != (self.type == "structural_tag"):
            raise ValueError("structures and triggers, or format, belong to type 'structural_tag'")
        return self


_SchemaOrText = Annotated[
    Schema | str | None, WithJsonSchema({"anyOf": [{"type": "object"}, {"type": "string"}, {"type": "null"}]})
]


class StructuralTag(TagFields):
    type: Literal["structural_tag"] = "structural_tag"

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if not self.is_whole:
            raise ValueError("needs structures and triggers, or format")
        return self


def _read_text(value: object) -> object:
    return from_json(value.encode()) if isinstance(value, str) else value


class StructuredOutputs(Body):
    """Exactly one field says what the answer must be."""

    json_: Annotated[_SchemaOrText, Field(alias="json")] = None  # A JSON schema, or its text
    regex: Annotated[str, Field(min_length=1)] | None = None
    choice: Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1, max_length=1024)] | None = None
    grammar: Annotated[str, Field(min_length=1)] | None = None  # Lark, in llguidance's dialect, or GBNF
    json_object: Literal[True] | None = None
    structural_tag: Annotated[StructuralTag | None, BeforeValidator(_read_text)] = None  # or its text
    disable_additional_properties: bool | None = None
    """Objects whose schema does not say have no other properties; default: the server's setting."""

    @model_validator(mode="after")
    def _one(self) -> Self:
        given = [name for name in STRUCTURED_FORMS if getattr(self, STRUCTURED_FORMS[name]) is not None]
        if len(given) != 1:
            raise ValueError(f"needs exactly one of {', '.join(STRUCTURED_FORMS)}")
        return self


STRUCTURED_FORMS = {
    "json": "json_",
    "regex": "regex",
    "choice": "choice",
    "grammar": "grammar",
    "json_object": "json_object",
    "structural_tag": "structural_tag",
}
"""Attribute of each form by its name in JSON."""


class StreamOptions(Body):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None  # every chunk carries the usage so far
    include_obfuscation: bool | None = None  # chunks are padded, so that their sizes do not show what they hold


class SpeculationBody(Body):
    """Prolepsis' own field: what this request asks of speculation. It never changes the output."""

    mode: SpecMode | None = None
    """auto: where it pays; off; always: wherever there is a draft; shadow: draft and compare, verify nothing."""
    max_depth: Count | None = None  # ceiling on drafted tokens a step
    proposer: str | None = None  # the only proposer that may draft
    emit: Literal["block", "token"] = "block"
    """token: each token leaves in its own chunk, evenly paced, so that chunks do not show what was accepted."""
    metrics: bool = False  # add `metrics` with acceptance figures and the mode in effect to the response
    origins: bool = False
    """Add `origins` to chat and text completions: the answer in pieces, each with the proposer that had drafted it."""
    learn: bool | None = None
    """true: draft heads may learn from it where the operator agreed for its tenant; false outweighs a header."""


class Prediction(Body):
    """OpenAI's predicted output."""

    type: Literal["content"]
    content: Text


class SharedBody(ClientBody):
    """Fields of every generation endpoint; None means not given."""

    model: ModelName = ""  # empty: the first one that the caller may use
    temperature: Number | None = None
    top_p: Number | None = None
    top_k: TopK | None = None
    min_p: Number | None = None
    repetition_penalty: Number | None = None
    presence_penalty: Number | None = None
    frequency_penalty: Number | None = None
    logit_bias: LogitBias | None = None
    seed: Seed | None = None
    stop: Stop | None = None
    stop_token_ids: Annotated[list[Count], Field(max_length=128)] | None = None
    min_tokens: Count | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    structured_outputs: StructuredOutputs | None = None
    stream: bool | None = None
    priority: Priority | None = None
    request_id: Token | None = None  # becomes part of the response's id
    cache_salt: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    """Prefixes and drafts are shared only among requests of one tenant with the same salt."""
    speculation: SpeculationBody | None = None
    service_tier: Annotated[Literal["auto", "default", "flex"], Served(("auto", "default", "flex"))] | None = None
    """flex: the request is of the tier economy, unless its key's tier has no larger share."""
    stream_options: StreamOptions | None = None
    metadata: Metadata | None = None  # rules of a policy may read it
    user: Annotated[str | None, NoEffect()] = None
    safety_identifier: Annotated[str | None, NoEffect()] = None
    prompt_cache_key: Annotated[str | None, NoEffect()] = None


class GenerationBody(SharedBody):
    """Fields that chat and text completions share."""

    n: Samples | None = None
    max_tokens: MaxTokensOrNone | None = None
    response_format: ResponseFormat | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    """Log-probabilities name tokens `token_id:ID`, since several tokens may have one text."""
    prompt_logprobs: TopLogprobs | None = None
    """The log-probability of each token of the prompt but the first, and those of so many likeliest tokens."""
    allowed_token_ids: Annotated[list[Count], Field(max_length=MAX_ALLOWED_TOKENS)] | None = None
    """The only tokens of the answer; the end of sequence ends it if it is one of them."""
    logprob_token_ids: Annotated[list[Count], Field(max_length=MAX_LOGPROB_TOKENS)] | None = None
    """Log-probabilities of these tokens stand in place of those of the likeliest."""
    truncate_prompt_tokens: PromptTokens | None = None
    """The prompt's last tokens, so many, are the prompt; -1: those that fit the context."""
    truncation_side: Literal["left", "right"] | None = None  # right: the first tokens are the prompt, not the last

    @property
    def answer_tokens(self) -> int | None:
        return self.max_tokens


Messages: TypeAlias = Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]


class TemplateBody(ClientBody):
    """What the model's chat template gets besides messages and tools."""

    chat_template_kwargs: dict[str, object] | None = None
    """Variables for the model's chat template, such as enable_thinking."""
    documents: Annotated[list[dict[str, object]], Field(max_length=MAX_DOCUMENTS)] | None = None
    """Texts that the answer is to use, mostly with `title` and `text`; they are the template's variable `documents`."""
    add_generation_prompt: bool | None = None
    """false: the prompt ends behind the last message; default: at the begin of the answer."""
    continue_final_message: bool | None = None
    """The prompt ends inside of the last message, which the answer continues."""
    parse_special: bool | None = None
    """What reads like a control token becomes one; default: in a conversation it stays text."""

    @model_validator(mode="after")
    def _one_end(self) -> Self:
        if self.continue_final_message and self.add_generation_prompt:
            raise ValueError("'continue_final_message' and 'add_generation_prompt' are true; allowed: one of them")
        return self

    @property
    def template_variables(self) -> dict[str, object]:
        documents = {} if self.documents is None else {"documents": self.documents}
        return {**(self.chat_template_kwargs or {}), **documents}


class ChatBody(GenerationBody, TemplateBody):
    messages: Messages
    echo: bool | None = None  # the content begins with that of the last message, if that is the assistant's
    max_completion_tokens: MaxTokens | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
    prediction: Prediction | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None

    @property
    def answer_tokens(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


class CompletionBody(GenerationBody):
    prompt: Prompts
    suffix: str | None = None  # what follows the text: the model fills the middle, if it has learnt to
    add_special_tokens: bool | None = None  # default: true, the model's tokens around a text, such as BOS
    echo: bool | None = None  # the text begins with the prompt, and so do log-probabilities
    best_of: Samples | None = None  # 1, or as many as `n`: all samples are shown
    logprobs: TopLogprobs | None = None


class FillBody(SharedBody):
    """Mistral's body of a gap: what comes before it and behind it."""

    prompt: str
    suffix: str | None = None
    max_tokens: MaxTokensOrNone | None = None  # none: the answer may fill the context
    random_seed: Seed | None = None

    def completion(self) -> CompletionBody:
        given = {name: value for name, value in self if name != "random_seed"}
        seed = self.seed if self.random_seed is None else self.random_seed
        return CompletionBody.model_construct(**{**given, "prompt": [self.prompt], "seed": seed})
