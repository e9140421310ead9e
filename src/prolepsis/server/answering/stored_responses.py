"""Responses that are stored, and those that run in the background, whoever listens."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import cast
from weakref import WeakValueDictionary

import structlog
from jiter import from_json
from starlette.requests import Request

from prolepsis.control.store.batches import LEASE_S
from prolepsis.control.store.responses import RUNNING, ResponseNews, ResponseTable, StoredResponse
from prolepsis.control.store.turns import PeriodicWork
from prolepsis.control.web.caller import Caller, caller_of
from prolepsis.control.web.context import Context
from prolepsis.control.web.errors import RequestAborted, RequestRefused
from prolepsis.control.web.feature import Feature, contained_tick
from prolepsis.control.web.reply_headers import warn
from prolepsis.control.web.skipped import apart
from prolepsis.core.config import DAY_S
from prolepsis.core.errors import InvalidParameter, StoreUnavailable
from prolepsis.server.answering.stream import NAMED_SSE
from prolepsis.server.answering.usage import Json
from prolepsis.server.front.keys import Keys

_POLL_S = 0.25
"""How often it is seen what a response has said that runs on another server."""
_MOST_EVENTS, _MOST_BYTES = 500, 2**18
Read = Callable[[int], tuple[str | None, Sequence[str]]]
"""Returns the status of the response, and a page of its events behind a number. Waits for the database."""


class FollowedEvents:
    """Has the last events that were read; each follower has its own place. Belongs to one event loop."""

    def __init__(self, read: Read, runs_here: Callable[[], bool]) -> None:
        """`runs_here`: whether `add` gets each event."""
        self._read = read
        self._runs_here = runs_here
        self._turn = asyncio.Lock()
        self._status: str | None = None
        self._first, self._events, self._num_bytes = 0, list[Json](), 0
        self._has_last = False
        """The store has no event behind these, as far as is known."""
        self._looked = 0.0
        self._news = asyncio.Event()

    async def behind(self, number: int) -> tuple[str | None, Sequence[Json]]:
        """Return the status of the response, None without one, and the next events behind a number."""
        async with self._turn:
            place, event = number + 1 - self._first, self._news
            if not 0 <= place < len(self._events) + self._has_last:
                self._has_last = False
                self._status, texts = await asyncio.to_thread(self._read, number)
                self._looked = time.monotonic()
                if texts or place != len(self._events):
                    self._hold(number + 1, texts)
                self._has_last, place = not texts and event is self._news, number + 1 - self._first
            return self._status, self._events[place:]

    def add(self, first: int, texts: Sequence[str]) -> None:
        if self._has_last and texts:
            is_next = first == self._first + len(self._events)
            has_room = len(self._events) < _MOST_EVENTS and self._num_bytes < _MOST_BYTES
            self._hold(self._first if is_next and has_room else first, texts)
        self._news.set()
        self._news = asyncio.Event()

    async def changed(self) -> None:
        """Wait for the next events, or until the store is to be asked for them."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_POLL_S):
                await self._news.wait()
        if not self._runs_here() and time.monotonic() >= self._looked + _POLL_S:
            self._has_last = False

    def _hold(self, first: int, texts: Sequence[str]) -> None:
        """Hold events behind the others, if `first` is still the first of all; else alone."""
        if first != self._first or not self._has_last:
            self._first, self._events, self._num_bytes = first, [], 0
        self._events = [*self._events, *(from_json(text.encode()) for text in texts)]
        self._num_bytes += sum(map(len, texts))


MOST_RUNNING = 100
"""Responses of a tenant in the background that have not ended."""
MOST_FOLLOWERS = 100
"""Streams of a tenant that follow responses here."""
MOST_BYTES = 2**24
"""Size of a stored response, and of the conversation that a request continues."""
MOST_EVENT_BYTES = 32 * 2**20
_KEEP_S = 0.05
_PAUSE_S = 0.0025
"""Between two pages of events, for each stream of the tenant that follows: together they send so many a second."""
_HOUR_S = 3600.0
log = structlog.get_logger(__name__)

PAGES = replace(
    NAMED_SSE, frame=lambda item: "".join(map(NAMED_SSE.frame, cast(Sequence[Json], item.get("page", (item,)))))
)
"""How pages of events are written: in one piece each."""
GivenItems = Callable[[], Sequence[Json]]
"""Returns the items that were given with a request, as clients see them."""
Failed = Callable[[Exception], Json]
"""Returns a response as an error has ended it."""
_LOST = {"code": "server_error", "message": "The server that ran this response has ended. Send the request again."}


class BackgroundResponse:
    """A response that runs here in the background."""

    def __init__(self, caller: Caller, document: Json, num_bytes: int, failed: Failed, *, event_bytes: int) -> None:
        """`event_bytes`: room for events; those beyond it are not kept."""
        self.caller = caller
        self.task: asyncio.Task[None]
        self.error: Exception | None = None
        """What refused it before it began."""
        self.document = document
        self._kept_document: Mapping[str, object] = document
        self._unkept: list[tuple[int, str]] = []
        self._failed = failed
        self._room = event_bytes
        self._number = 0
        self._num_bytes = num_bytes

    def take(self, event: Json) -> None:
        text = json.dumps(event)
        if len(text) > MOST_BYTES:
            message = f"The response has more than {MOST_BYTES} bytes; allowed: fewer tokens, or fewer top_logprobs."
            raise RequestRefused(message, code="response_too_large")
        self._number += 1
        self._room -= len(text)
        if self._room > 0:
            self._num_bytes += len(text)
            self._unkept.append((self._number, text))
        if isinstance(shown := event.get("response"), dict):
            self._num_bytes += len(text)
            self.document = shown

    def fail(self, error: Exception) -> None:
        """End it, unless it has ended; what it said so far stays, if it is not too large."""
        if self.document["status"] not in RUNNING:
            return
        event: Json = {"type": "response.failed", "sequence_number": self._number + 1}
        shown = self._failed(error)
        try:
            self.take({**event, "response": shown})
        except RequestRefused:
            self.take({**event, "response": {**shown, "output": []}})

    def news(self, response_id: str) -> ResponseNews:
        document = None if self.document is self._kept_document else self.document
        return ResponseNews(response_id, document, tuple(self._unkept), self._num_bytes)

    def kept(self, news: ResponseNews) -> None:
        del self._unkept[: len(news.events)]
        self._kept_document = news.document or self._kept_document


class StoredResponses(Feature):
    """Belongs to one event loop. Responses that run on a server that is lost fail when its leases have lapsed."""

    name = "responses"

    def __init__(self, context: Context, keys: Keys) -> None:
        self.table = ResponseTable(context.database)
        self._retention_s = context.config.response_retention_days * DAY_S if context.database.is_kept else 0.0
        self._most_bytes = context.config.response_bytes
        self._is_kept = context.database.is_kept
        self._periodic_work = PeriodicWork(context.database)
        self._skipped = context.skipped
        self._keys = keys
        self._running: dict[str, BackgroundResponse] = {}
        self._followed = WeakValueDictionary[tuple[str, str], FollowedEvents]()
        """Those that some stream holds."""
        self._followers = Counter[str]()
        self._wake = asyncio.Event()
        self._renewed = 0.0

    def stores(self, *, store: bool | None, background: bool) -> bool:
        """Return whether an answer is stored; raises `InvalidParameter` where it has to be and is not."""
        field = "background" if background else "store" if store else None
        if field and not self._retention_s:
            message = f"{field} is true; allowed: false, as this server stores no responses (response_retention_days)"
            raise InvalidParameter(message, param=field)
        if background and store is False:
            message = "store is false, and background can only be used when `store` is true; allowed: true or null"
            raise InvalidParameter(message, param="store")
        return store is not False and self._retention_s > 0

    async def conversation(self, tenant: str, previous_id: str | None) -> Sequence[StoredResponse]:
        read = partial(self.table.conversation, tenant, previous_id, MOST_BYTES)
        turns = await asyncio.to_thread(read) if previous_id else []
        missing = turns[0].previous_id if turns else previous_id
        if missing is not None:
            message = f"Previous response with id {missing[:64]!r} not found; it was not stored, or is deleted."
            raise RequestRefused(message, code="previous_response_not_found", param="previous_response_id")
        if turns and turns[-1].status not in ("completed", "incomplete"):
            message = f"The previous response is {turns[-1].status}; allowed: completed or incomplete."
            raise RequestRefused(message, code="previous_response_not_ended", param="previous_response_id")
        return turns

    async def keep(self, given: GivenItems, request: Request, document: Json) -> Json:
        """Store an ended response and return it; without the store it says that it is not stored."""
        try:
            await asyncio.to_thread(self._add, given, caller_of(request).tenant, document)
        except (StoreUnavailable, RequestRefused) as error:
            why = "it is too large" if isinstance(error, RequestRefused) else "the store is unavailable"
            warn(request, f"store: the response is not stored, as {why}")
            return {**document, "store": False}
        return document

    async def begin(
        self,
        given: GivenItems,
        request: Request,
        document: Json,
        events: AsyncGenerator[Json, None],
        failed: Failed,
        *,
        keeps_events: bool,
    ) -> None:
        """Let a response run to its end, of which `document` is the beginning; raises what refuses it at once."""
        caller, name = caller_of(request), str(document["id"])
        first = {"type": "response.created", "response": document, "sequence_number": 0}
        kept = [json.dumps(first)] if keeps_events else []
        num_bytes = await asyncio.to_thread(self._add, given, caller.tenant, document, kept)
        room = MOST_EVENT_BYTES if keeps_events else 0
        running = self._running[name] = BackgroundResponse(caller, document, num_bytes, failed, event_bytes=room)
        running.task = asyncio.create_task(self._run(running, events))
        await asyncio.wait({running.task}, timeout=0)  # what refuses it at once has done so
        if running.error is not None:
            self._running.pop(name, None)
            await asyncio.to_thread(self.table.remove, caller.tenant, name)
            raise running.error

    async def follow(self, tenant: str, response_id: str, after: int) -> AsyncGenerator[Json, None]:
        """Yield pages of the events behind a sequence number, as they are kept, for `PAGES`.

        Raises `RequestRefused` where there are none.
        """
        kind = ""
        with self._following(tenant, response_id) as followed:
            while True:
                status, events = await followed.behind(after)
                if events:
                    after, kind = after + len(events), str(events[-1]["type"])
                    yield {"page": events}
                if kind in ("response.completed", "response.incomplete", "response.failed"):
                    return
                if not events and (status not in RUNNING or after < 0):  # the first one is kept from the beginning
                    message = (
                        f"No event behind {after} is kept of this response, which is {status or 'deleted'}; "
                        "allowed: one that was made with background and stream, and a number of an event."
                    )
                    raise RequestRefused(message, code="events_not_kept", param="starting_after")
                await (asyncio.sleep(_PAUSE_S * self._followers[tenant]) if events else followed.changed())

    @contextmanager
    def _following(self, tenant: str, response_id: str) -> Iterator[FollowedEvents]:
        """Hold the events of a response, which all that follow it share."""
        if self._followers[tenant] >= MOST_FOLLOWERS:
            message = f"{MOST_FOLLOWERS} streams of this tenant follow responses; allowed: to wait for the end of one."
            raise RequestRefused(message, code="too_many_followers", status=429, headers={"retry-after": "10"})
        own = FollowedEvents(partial(self.table.events, tenant, response_id), lambda: response_id in self._running)
        self._followers[tenant] += 1
        try:
            yield self._followed.setdefault((tenant, response_id), own)
        finally:
            self._followers -= Counter({tenant: 1})

    def poll_now(self) -> None:
        """See at once what clients have changed in the store."""
        self._renewed = 0.0
        self._wake.set()

    async def run(self) -> None:
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
        if is_due:
            for running in self._running.values():
                try:
                    self._keys.client_of(running.caller.key_id, running.caller.tenant)
                except RequestRefused as error:
                    running.task.cancel()
                    running.fail(error)
        with suppress(StoreUnavailable):
            await self._keep(everything=is_due)
            if is_due:
                self._renewed = time.monotonic()
                lost = await asyncio.to_thread(self.table.lost)
                for name, tenant in self._skipped.due(self.name, lost, lambda key: key[0]):
                    with self._skipped.contained(self.name, name, tenant):
                        await asyncio.to_thread(self.table.fail_lost, name, _LOST)
                if await asyncio.to_thread(self._periodic_work.take, self.name, _HOUR_S):
                    await asyncio.to_thread(self.table.forget)

    async def close(self) -> None:
        for running in self._running.values():
            running.task.cancel()
        await asyncio.gather(*(running.task for running in self._running.values()), return_exceptions=True)
        for running in self._running.values():
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
        news = [response.news(name) for name, response in running.items()]
        news = [item for item in news if everything or item.document or item.events]
        if not news:
            return
        held = await asyncio.to_thread(apart, self.table.keep, news, _not_kept)
        for update in news:
            running[update.response_id].kept(update)
            events = update.events if update.response_id in held else ()
            if followed := self._followed.get((running[update.response_id].caller.tenant, update.response_id)):
                followed.add(events[0][0] if events else 0, [text for _, text in events])
            if update.response_id not in held:
                running[update.response_id].task.cancel()
            if update.response_id not in held or (update.document and update.document["status"] not in RUNNING):
                self._running.pop(update.response_id, None)

    def _add(self, given: GivenItems, tenant: str, document: Json, events: Sequence[str] = ()) -> int:
        """Store a response; returns its size. Waits for the database. Raises `RequestRefused` without room for it."""
        now, items, previous_id = time.time(), given(), document["previous_response_id"]
        num_bytes = len(json.dumps(items)) + len(json.dumps(document)) + sum(map(len, events))
        if num_bytes > MOST_BYTES:
            message = f"The response has {num_bytes} bytes with its input; allowed to be stored: {MOST_BYTES}."
            raise RequestRefused(message, code="response_too_large", status=413)
        response = StoredResponse(
            response_id=str(document["id"]),
            tenant=tenant,
            previous_id=None if previous_id is None else str(previous_id),
            document=document,
            input=items,
            num_bytes=num_bytes,
            created_at=now,
            expires_at=now + self._retention_s,
            began_at=float(str(document["created_at"])),
        )
        if not self.table.add(response, most_bytes=self._most_bytes, events=events, most_running=MOST_RUNNING):
            message = f"{MOST_RUNNING} background responses of this tenant have not ended; allowed: to wait for one."
            raise RequestRefused(message, code="too_many_responses", status=429, headers={"retry-after": "10"})
        return num_bytes


def _not_kept(news: ResponseNews, error: Exception) -> Sequence[str]:
    """Let a response be stopped whose news the database refuses: it fails when its lease lapses."""
    log.error("response_not_kept", response=news.response_id, error=type(error).__name__)
    return ()
