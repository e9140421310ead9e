"""Responses that are stored, and those that run in the background, whoever listens."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import partial

import structlog
from jiter import from_json
from starlette.requests import Request

from prolepsis.control.store.batches import LEASE_S
from prolepsis.control.store.replicas import PeriodicWork
from prolepsis.control.store.responses import RUNNING, ResponseNews, ResponseTable, StoredResponse
from prolepsis.control.web.caller import caller_of
from prolepsis.control.web.context import Context
from prolepsis.control.web.errors import RequestAborted, RequestRefused
from prolepsis.control.web.feature import Feature, contained_tick
from prolepsis.control.web.reply_headers import warn
from prolepsis.control.web.skipped import apart
from prolepsis.core.config import DAY_S
from prolepsis.core.errors import InvalidParameter, StoreUnavailable
from prolepsis.server.openai.responses_bodies import ResponsesBody, shown_items
from prolepsis.server.openai.usage import Json

MOST_RUNNING = 100
"""Responses of a tenant in the background that have not ended."""
MOST_EVENT_BYTES = 32 * 2**20
"""Size of a response's events."""
_KEEP_S = 0.05
"""Time between two writes of what has happened."""
_POLL_S = 0.25
"""How often it is seen what a response has said that runs on another server."""
_EVENTS_OF_PAGE = 500
_HOUR_S = 3600.0
log = structlog.get_logger(__name__)
Failed = Callable[[Exception], Json]
"""Returns a response as an error has ended it."""
_LOST = {"code": "server_error", "message": "The server that ran this response has ended. Send the request again."}


class BackgroundResponse:
    """A response that runs here in the background."""

    def __init__(self, document: Json, num_bytes: int, failed: Failed, *, event_bytes: int) -> None:
        """`event_bytes`: room for events; those beyond it are not kept."""
        self.task: asyncio.Task[None]
        self.error: Exception | None = None
        """What refused it before it began."""
        self.document = document
        self.is_kept = asyncio.Event()
        """Set when what has happened is in the store; the next one is for what happens then."""
        self._kept_document: Mapping[str, object] = document
        self._unkept: list[tuple[int, str]] = []
        self._failed = failed
        self._room = event_bytes
        self._number = 0
        self._num_bytes = num_bytes

    def take(self, event: Json) -> None:
        """Take the next event; one that shows the response changes it."""
        text = json.dumps(event)
        self._number += 1
        self._room -= len(text)
        if self._room > 0:
            self._num_bytes += len(text)
            self._unkept.append((self._number, text))
        if isinstance(shown := event.get("response"), dict):
            self._num_bytes += len(text)
            self.document = shown

    def fail(self, error: Exception) -> None:
        event: Json = {"type": "response.failed", "response": self._failed(error)}
        self.take({**event, "sequence_number": self._number + 1})

    def news(self, response_id: str) -> ResponseNews:
        """Return what is not in the store yet."""
        document = None if self.document is self._kept_document else self.document
        return ResponseNews(response_id, document, tuple(self._unkept), self._num_bytes)

    def kept(self, news: ResponseNews) -> None:
        """Drop what is in the store now."""
        del self._unkept[: len(news.events)]
        self._kept_document = news.document or self._kept_document
        self.is_kept.set()
        self.is_kept = asyncio.Event()


class StoredResponses(Feature):
    """Belongs to one event loop. Responses that run on a server that is lost fail when its leases have lapsed."""

    name = "responses"

    def __init__(self, context: Context) -> None:
        self.table = ResponseTable(context.database)
        self._retention_s = context.config.response_retention_days * DAY_S if context.database.is_kept else 0.0
        self._most_bytes = context.config.response_bytes
        self._is_kept = context.database.is_kept
        self._periodic_work = PeriodicWork(context.database)
        self._skipped = context.skipped
        self._running: dict[str, BackgroundResponse] = {}
        self._wake = asyncio.Event()
        self._renewed = 0.0

    def stores(self, body: ResponsesBody) -> bool:
        """Return whether the answer to `body` is stored; raises `InvalidParameter` where it has to be and is not."""
        field = "background" if body.background else "store" if body.store else None
        if field and not self._retention_s:
            message = f"{field} is true; allowed: false, as this server stores no responses (response_retention_days)"
            raise InvalidParameter(message, param=field)
        if body.background and body.store is False:
            message = "store is false, and background can only be used when `store` is true; allowed: true or null"
            raise InvalidParameter(message, param="store")
        return body.store is not False and self._retention_s > 0

    async def conversation(self, tenant: str, previous_id: str | None) -> Sequence[StoredResponse]:
        """Return the responses that a request continues; raises `RequestRefused` where one is missing or has no end."""
        found = await asyncio.to_thread(self.table.conversation, tenant, previous_id) if previous_id else []
        missing = found[0].previous_id if found else previous_id
        if missing is not None:
            message = f"Previous response with id {missing[:64]!r} not found; it was not stored, or is deleted."
            raise RequestRefused(message, code="previous_response_not_found", param="previous_response_id")
        if found and found[-1].status not in ("completed", "incomplete"):
            message = f"The previous response is {found[-1].status}; allowed: completed or incomplete."
            raise RequestRefused(message, code="previous_response_not_ended", param="previous_response_id")
        return found

    async def keep(self, body: ResponsesBody, request: Request, document: Json) -> Json:
        """Store an ended response and return it; without the store it says that it is not stored."""
        try:
            await asyncio.to_thread(self._add, body, caller_of(request).tenant, document)
        except StoreUnavailable:
            warn(request, "store: the response is not stored, as the store is unavailable")
            return {**document, "store": False}
        return document

    async def begin(
        self,
        body: ResponsesBody,
        request: Request,
        document: Json,
        events: AsyncGenerator[Json, None],
        failed: Failed,
    ) -> None:
        """Let a response run to its end, of which `document` is the beginning; raises what refuses it at once."""
        tenant = caller_of(request).tenant
        if await asyncio.to_thread(self.table.num_running, tenant) >= MOST_RUNNING:
            message = f"{MOST_RUNNING} background responses of this tenant have not ended; allowed: to wait for one."
            raise RequestRefused(message, code="too_many_responses", status=429, headers={"retry-after": "10"})
        name = str(document["id"])
        first = {"type": "response.created", "response": document, "sequence_number": 0}
        kept = [json.dumps(first)] if body.stream else []
        num_bytes = await asyncio.to_thread(self._add, body, tenant, document, kept)
        room = MOST_EVENT_BYTES if body.stream else 0
        running = self._running[name] = BackgroundResponse(document, num_bytes, failed, event_bytes=room)
        running.task = asyncio.create_task(self._run(running, events))
        await asyncio.wait({running.task}, timeout=0)  # what refuses it at once has done so
        if running.error is not None:
            self._running.pop(name, None)
            await asyncio.to_thread(self.table.remove, tenant, name)
            raise running.error

    async def follow(self, tenant: str, response_id: str, after: int) -> AsyncGenerator[Json, None]:
        """Yield the events behind a sequence number, as they are kept; raises `RequestRefused` where there are none."""
        kind = ""
        while True:
            running = self._running.get(response_id)
            is_kept = running.is_kept if running else asyncio.Event()
            read = partial(self.table.events, tenant, response_id, after, _EVENTS_OF_PAGE)
            status, texts = await asyncio.to_thread(read)
            for text in texts:
                event: dict[str, object] = from_json(text.encode())
                after, kind = after + 1, str(event["type"])
                yield event
            if kind in ("response.completed", "response.incomplete", "response.failed"):
                return
            if not texts and (status not in RUNNING or after < 0):  # the first one is kept from the beginning
                message = (
                    f"No event behind {after} is kept of this response, which is {status or 'deleted'}; "
                    "allowed: one that was made with background and stream, and a number before its last."
                )
                raise RequestRefused(message, code="events_not_kept", param="starting_after")
            if not texts:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_POLL_S):
                        await is_kept.wait()

    def look(self) -> None:
        """See at once what clients have changed in the store."""
        self._renewed = 0.0
        self._wake.set()

    async def run(self) -> None:
        """Work until cancelled."""
        while self._is_kept:
            with suppress(TimeoutError):
                async with asyncio.timeout(LEASE_S / 3):
                    await self._wake.wait()
            self._wake.clear()
            await contained_tick(self)
            await asyncio.sleep(_KEEP_S)

    async def tick(self) -> None:
        """Keep what has happened; without the store, whose writer reports it, that waits."""
        is_due = time.monotonic() > self._renewed + LEASE_S / 3
        with suppress(StoreUnavailable):
            await self._keep(everything=is_due)
            if is_due:
                self._renewed = time.monotonic()
                lost = await asyncio.to_thread(self.table.lost)
                for name, tenant in self._skipped.due(self.name, lost, lambda one: one[0]):
                    with self._skipped.contained(self.name, name, tenant):
                        await asyncio.to_thread(self.table.fail_lost, name, _LOST)
                if await asyncio.to_thread(self._periodic_work.take, self.name, _HOUR_S):
                    await asyncio.to_thread(self.table.forget)

    async def close(self) -> None:
        """Fail what runs here."""
        for running in self._running.values():
            running.task.cancel()
        await asyncio.gather(*(one.task for one in self._running.values()), return_exceptions=True)
        for running in self._running.values():
            if running.document["status"] in RUNNING:
                running.fail(RequestAborted("The server stopped before the response had ended."))
        with suppress(StoreUnavailable):
            await self._keep(everything=True)

    async def _run(self, running: BackgroundResponse, events: AsyncGenerator[Json, None]) -> None:
        began = False
        try:
            async with aclosing(events):
                async for event in events:
                    if began:  # the first one says that it was created, and is kept
                        running.take(event)
                        self._wake.set()
                    began = True
        except Exception as error:  # contained: the response says what failed
            running.error = error
            running.fail(error)
            self._wake.set()

    async def _keep(self, *, everything: bool) -> None:
        """Keep what has happened and renew the leases; stop what was cancelled or deleted."""
        running = dict(self._running)
        news = [one.news(name) for name, one in running.items()]
        news = [one for one in news if everything or one.document or one.events]
        if not news:
            return
        held = await asyncio.to_thread(apart, self.table.keep, news, _not_kept)
        for one in news:
            running[one.response_id].kept(one)
            if one.response_id not in held:
                running[one.response_id].task.cancel()
            if one.response_id not in held or (one.document and one.document["status"] not in RUNNING):
                self._running.pop(one.response_id, None)

    def _add(self, body: ResponsesBody, tenant: str, document: Json, events: Sequence[str] = ()) -> int:
        """Store a response; returns its size. Waits for the database."""
        now, items = time.time(), shown_items(body.input)
        num_bytes = len(json.dumps(items)) + len(json.dumps(document)) + sum(map(len, events))
        response = StoredResponse(
            response_id=str(document["id"]),
            tenant=tenant,
            previous_id=body.previous_response_id,
            document=document,
            input=items,
            num_bytes=num_bytes,
            created_at=now,
            expires_at=now + self._retention_s,
        )
        self.table.add(response, most_bytes=self._most_bytes, events=events)
        return num_bytes


def _not_kept(news: ResponseNews, error: Exception) -> Sequence[str]:
    """Let a response be stopped whose news the database refuses: it fails when its lease lapses."""
    log.error("response_not_kept", response=news.response_id, error=type(error).__name__)
    return ()
