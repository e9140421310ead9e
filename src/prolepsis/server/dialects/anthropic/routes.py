"""Anthropic's Messages API: POST /v1/messages and /v1/messages/count_tokens."""

from collections.abc import Sequence
from typing import Annotated, Literal

from fastapi import Request
from fastapi.responses import Response

from prolepsis.control.web.body_reader import read_body
from prolepsis.control.web.caller import caller_of
from prolepsis.control.web.errors import ErrorShape, RequestRefused
from prolepsis.control.web.fields import JsonObject, Reply
from prolepsis.control.web.routes import CLIENTS, Route, Routes
from prolepsis.server.answering.stream import NAMED_SSE
from prolepsis.server.answering.usage import Json
from prolepsis.server.dialects.anthropic.parse import CountTokensBody, MessagesBody, to_chat
from prolepsis.server.dialects.anthropic.render import MessageRendering
from prolepsis.server.dialects.dialect import Endpoint, answered, refuse_others
from prolepsis.server.known import MESSAGES_ROUTE
from prolepsis.server.openai.routes import HEADERS
from prolepsis.server.preparing.asked import tool_use
from prolepsis.server.preparing.conversation import chat_tokens
from prolepsis.server.services import Models, Services

MESSAGES = Endpoint(to_chat, MessageRendering, NAMED_SSE, prefix="msg_")
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    422: "api_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_TOO_LONG = "prompt is too long: "
"""Words by which clients know that a conversation has to become shorter."""
_TEXT = {"type": "string"}
_SCHEMA = {"type": "object", "properties": {"type": _TEXT, "message": _TEXT}, "required": ["type", "message"]}


def _error(refused: RequestRefused) -> Json:
    kind = _TYPES.get(refused.status, "invalid_request_error" if refused.status < 500 else "api_error")
    message = f"{_TOO_LONG if refused.code == 'context_length_exceeded' else ''}{refused}"
    return {"type": "error", "error": {"type": kind, "message": message}}


ERRORS = ErrorShape(
    "MessagesError",
    {"type": "object", "properties": {"type": {"const": "error"}, "error": _SCHEMA}, "required": ["type", "error"]},
    _error,
)


class MessagesReply(Reply):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[JsonObject]  # blocks of type text, thinking and tool_use
    stop_reason: str
    stop_sequence: str | None
    usage: dict[str, int]


class TokensCounted(Reply):
    input_tokens: int


def messages_routes(models: Models) -> Sequence[Route]:
    routes = Routes(ERRORS)

    @routes.post(
        MESSAGES_ROUTE,
        roles=CLIENTS,
        summary="Continue a conversation, in Anthropic's shape",
        reply=MessagesReply,
        errors=(409, 502, 504),
        streams="text/event-stream",
        headers=HEADERS,
    )
    async def messages(request: Request, body: Annotated[MessagesBody, read_body(MessagesBody)]) -> Response:
        return await answered(request, body, models, MESSAGES)

    @routes.post(f"{MESSAGES_ROUTE}/count_tokens", roles=CLIENTS, summary="Count the tokens of a conversation")
    async def count_tokens(
        request: Request, body: Annotated[CountTokensBody, read_body(CountTokensBody)]
    ) -> TokensCounted:
        services = models.of(body.model, caller_of(request))
        services.admission.admit_small(request)
        return await services.intake.large_work.off_loop(caller_of(request).tenant, lambda: _counted(body, services))

    refuse_others(routes, MESSAGES_ROUTE)
    return routes.all


def _counted(body: CountTokensBody, services: Services) -> TokensCounted:
    chat = to_chat(body)
    tools = tool_use(chat.tools, chat.tool_choice, chat.parallel_tool_calls)
    return TokensCounted(input_tokens=len(chat_tokens(chat, tools, services.tokenizer)))
