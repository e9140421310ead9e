"""A request the engine may be asked for, and how its answer is to be shown."""

from dataclasses import dataclass

from prolepsis.api.openai.conversation import Thinking
from prolepsis.core.requests import GenerateRequest
from prolepsis.policy.decision import Decision
from prolepsis.web.caller import Caller


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """How text and figures of an answer are shown."""

    skip_special_tokens: bool = True
    include_stop: bool = False
    """The stop string that ended a text is part of it."""
    token_ids: bool = False
    thinking: Thinking = Thinking.NONE
    tools: bool = False
    """The answer may call tools."""
    parallel: bool = True
    """It may hold several calls."""
    has_prediction: bool = False
    usage: bool = False
    """The last chunk of a stream carries the usage."""
    running_usage: bool = False
    """So do all others, with the usage so far."""


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """One request per prompt; choice i * n + j shows sample j of prompt i."""

    requests: tuple[GenerateRequest, ...]
    caller: Caller
    answer_id: str
    model: str
    stream: bool
    speculation: Decision
    options: OutputOptions
    deterministic: bool = False
    """The same request gives the same tokens: greedy, or the caller gave the seed."""
    grammar_field: str | None = None
    """Where the body asks for the answer's form."""

    @property
    def n(self) -> int:
        return self.requests[0].n

    @property
    def num_choices(self) -> int:
        return self.n * len(self.requests)

    @property
    def num_prompt_tokens(self) -> int:
        return sum(len(request.prompt_token_ids) for request in self.requests)

    @property
    def max_output_tokens(self) -> int:
        return sum(request.n * request.params.max_tokens for request in self.requests)
