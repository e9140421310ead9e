"""A generation request that was checked and is ready for the engine, and the HTTP request that it came with."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import get_args

from starlette.requests import Request

from prolepsis.control.policy.decision import Decision
from prolepsis.control.web.body_reader import BODY_BYTES
from prolepsis.control.web.caller import Caller, caller_of
from prolepsis.control.web.reply_headers import warn
from prolepsis.core.facts import RequestFacts
from prolepsis.core.requests import GenerateRequest, SpecMode
from prolepsis.core.trace_context import TraceContext
from prolepsis.engine.text.answer_formats.fenced import Fits
from prolepsis.engine.text.answer_formats.formats import AnswerFormats, Thinking
from prolepsis.server.front.tracing import ARRIVED, HTTP_REQUEST_ID, TRACE
from prolepsis.server.preparing.asked import NOTHING, Asked, ToolUse
from prolepsis.server.preparing.bodies import ChatBody, CompletionBody, GenerationBody
from prolepsis.server.preparing.target import TARGET_HEADERS

SPEC_MODE = "x-spec-mode"
SPEC_LEARN = "x-spec-learn"
SPEC_HEADERS = {
    SPEC_MODE: {"enum": list(get_args(SpecMode))},
    SPEC_LEARN: {"enum": ["yes", "no"]},
    **TARGET_HEADERS,
}
"""Their schemas, by their names."""


@dataclass(frozen=True, slots=True)
class RequestContext:
    """Caller, route and headers of one request."""

    caller: Caller
    route: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)  # by name in lower case; the first of equal names
    num_bytes: int = 0
    http_request_id: str = ""
    trace: TraceContext | None = None
    arrived: float = 0.0  # by `time.monotonic`
    warn: Callable[[str], None] = lambda text: None  # says what is not done as the client asked
    clamps: bool = False  # `max_tokens` past the room of the context means that room, and so does none


def context_of(request: Request) -> RequestContext:
    """Read it from a request that sign-in let through."""
    state = request.scope["state"]
    return RequestContext(
        caller_of(request),
        request.scope["path"],
        dict(request.headers),
        state[BODY_BYTES],
        state.get(HTTP_REQUEST_ID, ""),
        state.get(TRACE),
        state.get(ARRIVED, 0.0),
        partial(warn, request),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRequest:
    """One request per prompt; choice i * n + j shows sample j of prompt i."""

    body: GenerationBody  # the client's body; for /v1/responses the chat that it stands for
    context: RequestContext
    requests: tuple[GenerateRequest, ...]
    answer_id: str
    speculation: Decision
    facts: RequestFacts = field(default_factory=RequestFacts)
    thinking: Thinking = Thinking.NONE
    asked: Asked = NOTHING  # of the answer
    formats: AnswerFormats = AnswerFormats()  # noqa: RUF009  # it is frozen
    """What the answer is read by."""
    fits: Fits | None = None  # what decides whether fenced JSON is a call; None: it is none
    one_prefix: bool = False
    """The prompts begin alike: the first one runs alone, so that the others find that begin in the cache."""
    lossy: bool = False  # its texts are a writer's: no evidence, nothing to learn from, and no answer to store
    predict_s: float | None = None  # seconds behind the first text after which an answer ends with its line

    @property
    def stream(self) -> bool:
        return bool(self.body.stream)

    @property
    def tools(self) -> ToolUse:
        return self.asked.tools

    @property
    def deterministic(self) -> bool:
        """The same request gives the same tokens: greedy, or the caller gave the seed."""
        return self.requests[0].params.greedy or self.body.seed is not None

    @property
    def may_be_stored(self) -> bool:
        """A stored answer may stand for it. A caller who says how to draft wants to see that done."""
        return self.deterministic and self.speculation.requested.leaves_drafts_open and not self.lossy

    @property
    def learns(self) -> str:
        """The rule under which draft heads may learn from it, as caller and operator agreed; empty: they may not.

        A salt keeps its drafts from other requests, and several answers to one prompt are no sample of what it gets.
        """
        terms = self.speculation.terms.learning if self.speculation.terms else None
        is_agreed = terms is not None and self.context.caller.tenant in terms.tenants
        is_alone = self.body.cache_salt is None and self.requests[0].n == 1 and not self.lossy
        return self.speculation.rule or "" if self.speculation.requested.learn and is_agreed and is_alone else ""

    @property
    def echoes(self) -> bool:
        return isinstance(self.body, CompletionBody) and bool(self.body.echo)

    @property
    def echoed(self) -> str:
        """What the content of a chat's answers begins with: the assistant's last message, where that is asked for."""
        body = self.body
        if not isinstance(body, ChatBody) or not body.echo or body.messages[-1].role != "assistant":
            return ""
        return body.messages[-1].content or ""

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

    def reply_bytes(self, num_tokens: int) -> int:
        """Return how long a whole reply with so many tokens is at least, with the likeliest ones that it shows."""
        params, of_prompt = self.requests[0].params, self.requests[0].params.prompt_logprobs
        shown = num_tokens * (1 + abs(params.logprobs or 0))
        return 4 * (shown if of_prompt is None else shown + self.num_prompt_tokens * (1 + abs(of_prompt)))

    @property
    def num_prompt_tokens(self) -> int:
        return sum(len(request.prompt_token_ids) for request in self.requests)
