"""The answer of /v1/responses: one document, or a stream of typed events."""

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from itertools import count
from typing import TypeAlias

from prolepsis.control.store.responses import StoredResponse
from prolepsis.control.web.errors import describe_error
from prolepsis.core.engine_client import PromptProgress
from prolepsis.core.errors import AnswerBroken, UserError
from prolepsis.core.stats import RequestStats
from prolepsis.engine.text.tokenizer import Tokenizer
from prolepsis.server.answering.answer import Parts
from prolepsis.server.answering.stream import Voice, padded
from prolepsis.server.answering.usage import Json, metrics
from prolepsis.server.openai.completions import consumed, num_tokens
from prolepsis.server.openai.response_items import ResponseItems
from prolepsis.server.openai.responses_bodies import ResponsesBody, continued, renamed, to_chat, without_oldest
from prolepsis.server.preparing.asked import tool_use
from prolepsis.server.preparing.conversation import chat_tokens
from prolepsis.server.preparing.prepare import prepare_chat
from prolepsis.server.preparing.prepared import PreparedRequest, RequestContext
from prolepsis.server.services import Services
from prolepsis.server.text.deltas import Delta

Keep: TypeAlias = Callable[[Json], Awaitable[Json]]


async def prepare_response(
    body: ResponsesBody,
    earlier: Sequence[StoredResponse],
    context: RequestContext,
    services: Services,
    *,
    stored: bool = False,
) -> PreparedRequest:
    """Check `body`, behind the conversation of `earlier`, as the chat it stands for; raises `UserError`."""
    if not all(tool.is_enforced for _, tool in body.callable):
        context.warn("tools[].format: the model reads the grammar, and may leave it")
    num_bytes = context.num_bytes + sum(response.num_bytes for response in earlier)
    turn = partial(services.intake.large_work.run, context.caller.tenant, num_bytes)
    try:
        whole = await turn(lambda: _conversation(body, earlier, services))
        prepared = await prepare_chat(await turn(partial(to_chat, whole)), context, services, field="input")
    except UserError as error:
        raise renamed(error) from None
    if num_left := len(items_of(earlier)) + len(body.input) - len(whole.input):
        context.warn(f"truncation: the answer was made without {num_left} of the oldest items")
    asked = prepared.asked
    if asked.field == "response_format":
        asked = replace(asked, field="text.format")
    if stored and body.request_id:
        context.warn("without effect: request_id, as a stored response has an id of its own")
    named = prepared.requests[0].request_id if stored else prepared.answer_id  # one that is stored has an id of its own
    return replace(prepared, answer_id=named.replace("chatcmpl-", "resp_", 1), asked=asked)


def _conversation(body: ResponsesBody, earlier: Sequence[StoredResponse], services: Services) -> ResponsesBody:
    """Return the body with what of the conversation before it is for the model."""
    whole, info = continued(body, items_of(earlier)), services.client.info
    if body.truncation != "auto":
        return whole
    # an answer of no stated length keeps an eighth of the context
    room = info.max_model_len - (body.max_output_tokens or max(body.min_tokens or 1, info.max_model_len // 8))
    return without_oldest(whole, lambda some: _num_tokens(some, services.tokenizer) <= room)


def items_of(conversation: Sequence[StoredResponse]) -> list[Mapping[str, object]]:
    return [item for response in conversation for item in (*response.input, *response.output)]


def num_input_tokens(body: ResponsesBody, earlier: Sequence[StoredResponse], services: Services) -> int:
    """Return how many tokens the prompt of `body` has, behind the conversation of `earlier`; raises `UserError`."""
    try:
        return _num_tokens(_conversation(body, earlier, services), services.tokenizer)
    except UserError as error:
        raise renamed(error) from None


def _num_tokens(body: ResponsesBody, tokenizer: Tokenizer) -> int:
    chat = to_chat(body)
    return len(chat_tokens(chat, tool_use(chat.tools, chat.tool_choice, chat.parallel_tool_calls), tokenizer))


class ResponseShape(Voice):
    """The response object of one request, as far as it is known, and the events that show it."""

    def __init__(
        self, body: ResponsesBody, prepared: PreparedRequest, services: Services, *, keep: Keep | None = None
    ) -> None:
        """`keep` stores the response when it has ended, and returns it as it is then."""
        self.items = ResponseItems(prepared, [named for named, _ in body.callable])
        self.has_begun = False
        """The events that begin a stream are out."""
        self._number = count()
        self._is_padded = bool(body.stream_options and body.stream_options.include_obfuscation)
        self._keep = keep
        self._prepared = prepared
        self._services = services
        params, form, choice = prepared.requests[0].params, body.text and body.text.format, body.tool_choice or "auto"
        self._frame: Json = {
            "id": prepared.answer_id,
            "object": "response",
            "created_at": int(time.time()),
            "model": body.model,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "background": bool(body.background),
            "previous_response_id": body.previous_response_id,
            "reasoning": {"effort": None, "summary": None},
            "seed": params.seed,
            "store": bool(keep or body.background),
            "temperature": params.temperature,
            "text": {"format": form.model_dump(by_alias=True, exclude_none=True) if form else {"type": "text"}},
            "tool_choice": choice if isinstance(choice, str) else choice.model_dump(exclude_none=True),
            "tools": [tool.model_dump(exclude_none=tool.type != "function") for tool in body.tools or ()],
            "top_logprobs": body.top_logprobs or 0,
            "top_p": params.top_p,
            "truncation": body.truncation or "disabled",
            "user": body.user,
        }

    def numbered(self, event: Json) -> Json:
        numbered: Json = {**event, "sequence_number": next(self._number)}
        return padded(numbered) if self._is_padded and str(event["type"]).endswith(".delta") else numbered

    def opening(self) -> Sequence[Json]:
        if self.has_begun:
            return []
        self.has_begun = True
        kinds = ("response.created", "response.in_progress")
        return [self.numbered({"type": kind, "response": self.shown()}) for kind in kinds]

    def silence(self, progress: PromptProgress | None) -> Sequence[Json]:
        """Return an event: clients that wait for one at most so long count no comments."""
        return [self.numbered({"type": "response.in_progress", "response": self.shown()})]

    async def ended(self, stats: RequestStats) -> Json:
        cut = self.items.cut
        shown = self.shown("incomplete" if cut else "completed")
        shown["incomplete_details"] = {"reason": cut} if cut else None
        reasoning = self.items.reasoning
        shown["usage"] = {
            "input_tokens": stats.num_prompt_tokens,
            "input_tokens_details": {"cached_tokens": stats.num_cached_tokens, "cache_write_tokens": 0},
            "output_tokens": stats.num_output_tokens,
            "output_tokens_details": {
                "reasoning_tokens": await num_tokens(reasoning, self._prepared, self._services) if reasoning else 0
            },
            "total_tokens": stats.num_prompt_tokens + stats.num_output_tokens,
        }
        if self._prepared.speculation.requested.metrics:
            shown["metrics"] = metrics(stats, self._prepared.speculation)
        return await self._keep(shown) if self._keep else shown

    def failed(self, error: Exception) -> Json:
        code = error.code if isinstance(error, AnswerBroken) else "server_error"
        return {**self.shown("failed"), "error": {"code": code, "message": str(describe_error(error))}}

    def shown(self, status: str = "in_progress") -> Json:
        state: Json = {"status": status, "error": None, "incomplete_details": None, "usage": None}
        return {**self._frame, **state, "output": list(self.items.output)}


async def whole_response(parts: Parts, shape: ResponseShape) -> tuple[Json, RequestStats]:
    stats = await consumed(parts, shape.items.take)
    return await shape.ended(stats), stats


async def response_events(parts: Parts, shape: ResponseShape) -> AsyncGenerator[Json, None]:
    """Yield the typed events, numbered; a failure after the first is the last event, `response.failed`.

    A failure before it is raised, so that it can have its own status.
    """
    async with aclosing(parts):
        try:
            async for part in parts:
                for event in shape.opening():
                    yield event
                if isinstance(part, Delta):
                    for taken in shape.items.take(part):
                        yield shape.numbered(taken)
                else:
                    kind = "response.incomplete" if shape.items.cut else "response.completed"
                    yield shape.numbered({"type": kind, "response": await shape.ended(part)})
        except Exception as error:  # the status is out: the stream itself says what failed
            if not shape.has_begun:
                raise
            yield shape.numbered({"type": "response.failed", "response": shape.failed(error)})
