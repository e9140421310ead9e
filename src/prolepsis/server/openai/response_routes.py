"""/v1/responses/{id}: what is stored of a response, its events, and its end."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial
from typing import Annotated, Literal, NoReturn, cast

from fastapi import Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field

from prolepsis.control.store.responses import StoredResponse
from prolepsis.control.web.body_reader import read_query
from prolepsis.control.web.caller import SignedIn
from prolepsis.control.web.context import Context
from prolepsis.control.web.errors import RequestRefused
from prolepsis.control.web.fields import Body, JsonObject, Reply
from prolepsis.control.web.routes import CLIENTS, Route, Routes
from prolepsis.core.audit_event import Emit
from prolepsis.server.answering.stored_responses import MOST_BYTES, PAGES, StoredResponses
from prolepsis.server.answering.stream import AnswerStream, padded
from prolepsis.server.answering.usage import Json
from prolepsis.server.front.keys import Keys
from prolepsis.server.openai.replies import ResponseReply
from prolepsis.server.openai.responses import items_of


class ResponseQuery(Body):
    stream: bool = False
    starting_after: Annotated[int, Field(ge=0)] | None = None
    include_obfuscation: bool = False


class ItemsQuery(Body):
    after: str | None = None
    limit: Annotated[int, Field(ge=1, le=100)] = 20
    order: Literal["asc", "desc"] = "desc"


class ItemsReply(Reply):
    object: Literal["list"] = "list"
    data: list[JsonObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class ResponseDeletedReply(Reply):
    id: str
    object: Literal["response"] = "response"
    deleted: bool = True


def feature(context: Context, keys: Keys) -> StoredResponses:
    """Return the stored responses of a server, with their routes."""
    responses = StoredResponses(context, keys)
    responses.routes = _routes(responses, context.emit, context.config.stream_ping_s)
    return responses


def _routes(responses: StoredResponses, emit: Emit, ping_s: float) -> Sequence[Route]:
    """Return the routes; what belongs to another tenant is not found."""
    routes, table = Routes(), responses.table

    async def found(tenant: str, response_id: str) -> StoredResponse:
        return await asyncio.to_thread(table.get, tenant, response_id) or _not_found(response_id)

    @routes.get(
        "/v1/responses/{response_id}",
        roles=CLIENTS,
        summary="Show a stored response, or its events",
        reply=ResponseReply,
        streams="text/event-stream",
    )
    async def shown(
        request: Request, caller: SignedIn, response_id: str, query: Annotated[ResponseQuery, read_query(ResponseQuery)]
    ) -> Response:
        response = await found(caller.tenant, response_id)
        if not query.stream:
            return JSONResponse(response.document)
        await request.body()  # what comes behind it says that the client has left
        after = -1 if query.starting_after is None else query.starting_after
        events = responses.follow(caller.tenant, response_id, after)
        return AnswerStream(_padded(events) if query.include_obfuscation else events, PAGES, ping_s=ping_s)

    @routes.delete("/v1/responses/{response_id}", roles=CLIENTS, summary="Delete a stored response")
    async def delete(caller: SignedIn, response_id: str) -> ResponseDeletedReply:
        if not await asyncio.to_thread(table.remove, caller.tenant, response_id):
            _not_found(response_id)
        emit(caller.act("response.deleted", response_id))
        responses.poll_now()
        return ResponseDeletedReply(id=response_id)

    @routes.post(
        "/v1/responses/{response_id}/cancel",
        roles=CLIENTS,
        summary="Cancel a response in the background",
        reply=ResponseReply,
    )
    async def cancel(caller: SignedIn, response_id: str) -> Response:
        before = await found(caller.tenant, response_id)
        response = await asyncio.to_thread(table.cancel, caller.tenant, response_id) or before
        if response.status != "cancelled":
            message = f"The response is {response.status}; allowed: to cancel one in the background that has not ended"
            raise RequestRefused(message, code="response_ended")
        if before.status != "cancelled":
            emit(caller.act("response.cancelled", response_id))
            responses.poll_now()
        return JSONResponse(response.document)

    @routes.get("/v1/responses/{response_id}/input_items", roles=CLIENTS, summary="List what a response was given")
    async def input_items(
        caller: SignedIn, response_id: str, query: Annotated[ItemsQuery, read_query(ItemsQuery)]
    ) -> ItemsReply:
        read = partial(table.conversation, caller.tenant, response_id, MOST_BYTES)
        [*earlier, response] = await asyncio.to_thread(read) or [_not_found(response_id)]
        items = [dict(item) for item in (*items_of(earlier), *response.input)]
        return _page(items if query.order == "asc" else items[::-1], query)

    return routes.all


def _page(items: list[JsonObject], query: ItemsQuery) -> ItemsReply:
    ids = [str(item["id"]) for item in items]
    if query.after is not None and query.after not in ids:
        message = f"after is {query.after[:64]!r}; allowed: the id of one of the items"
        raise RequestRefused(message, code="not_found", param="after", status=404)
    start = 0 if query.after is None else len(ids) - ids[::-1].index(query.after)  # the last one, if clients repeat ids
    data = items[start : start + query.limit]
    first, last = (str(data[0]["id"]), str(data[-1]["id"])) if data else (None, None)
    return ItemsReply(data=data, first_id=first, last_id=last, has_more=len(items) > start + query.limit)


async def _padded(events: AsyncGenerator[Json, None]) -> AsyncGenerator[Json, None]:
    async with aclosing(events):
        async for item in events:
            page = cast(Sequence[Json], item["page"])
            yield {"page": [padded(event) if str(event["type"]).endswith(".delta") else event for event in page]}


def _not_found(response_id: str) -> NoReturn:
    message = f"Response with id {response_id[:64]!r} not found; it was not stored, or is deleted."
    raise RequestRefused(message, code="not_found", status=404)
