"""A request the engine may be asked for, and how its answer is to be read."""

from dataclasses import dataclass

from prolepsis.api.openai.bodies import ChatBody, GenerationBody
from prolepsis.api.openai.constraint import NO_TOOLS, ToolUse
from prolepsis.api.openai.context import RequestContext
from prolepsis.api.openai.conversation import Thinking
from prolepsis.core.requests import GenerateRequest
from prolepsis.policy.decision import Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRequest:
    """One request per prompt; choice i * n + j shows sample j of prompt i."""

    body: GenerationBody
    """What the client sent; of /v1/responses the chat that it stands for."""
    context: RequestContext
    requests: tuple[GenerateRequest, ...]
    answer_id: str
    speculation: Decision
    thinking: Thinking = Thinking.NONE
    tools: ToolUse = NO_TOOLS
    grammar_field: str | None = None
    """Where the body asks for the answer's form."""

    @property
    def stream(self) -> bool:
        return bool(self.body.stream)

    @property
    def deterministic(self) -> bool:
        """The same request gives the same tokens: greedy, or the caller gave the seed."""
        return self.requests[0].params.greedy or self.body.seed is not None

    @property
    def seed(self) -> int:
        """The caller's, or the one that was drawn; all prompts have it."""
        return self.requests[0].params.seed

    @property
    def has_prediction(self) -> bool:
        return isinstance(self.body, ChatBody) and self.body.prediction is not None

    @property
    def num_choices(self) -> int:
        return self.requests[0].n * len(self.requests)

    @property
    def num_prompt_tokens(self) -> int:
        return sum(len(request.prompt_token_ids) for request in self.requests)
