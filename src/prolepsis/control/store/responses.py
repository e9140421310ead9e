"""Responses that tenants keep in the store: what was asked, the answer, and events of background ones."""

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal

from sqlalchemy import ColumnElement, Connection, RowMapping, delete, func, insert, select, update

from prolepsis.control.store.batches import LEASE_S
from prolepsis.control.store.database import Database, StoreTable, hold
from prolepsis.control.store.pages import first_of
from prolepsis.control.store.tables import response_events, responses
from prolepsis.control.store.turns import not_forgotten
from prolepsis.core.errors import InvalidParameter

RUNNING = ("queued", "in_progress")
MOST_STORED = 10_000  # responses of a tenant; the oldest ones make room
_PAGE_BYTES = 2**18
_RESPONSES_A_DELETION = 20
Json = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResponse:
    response_id: str
    tenant: str
    previous_id: str | None  # response whose conversation it continues
    document: Json  # the response as clients see it
    input: Sequence[Json]  # items that were given with it, without those of the conversation before
    num_bytes: int
    created_at: float
    expires_at: float
    began_at: float = math.inf  # Unix time of its request

    @property
    def status(self) -> str:
        return str(self.document["status"])

    @property
    def output(self) -> Sequence[Json]:
        output = self.document["output"]
        assert isinstance(output, list), "every response has a list of items"
        return output


@dataclass(frozen=True, slots=True)
class ResponseNews:
    """What has happened to a response that runs, since it was last kept."""

    response_id: str
    document: Json | None  # None: it is as it was
    events: Sequence[tuple[int, str]] = ()  # events as JSON, by their sequence numbers
    num_bytes: int = 0


class ResponseTable(StoreTable):
    def add(
        self, response: StoredResponse, *, most_bytes: int, events: Sequence[str] = (), most_running: float = math.inf
    ) -> bool:
        """Keep a response, with the first events of one that runs; the tenant's oldest ones make room for it.

        Returns False for one that runs where this many of the tenant's have not ended. One that began before its tenant
        was forgotten is not kept.
        """
        running = select(func.count()).where(responses.c.tenant == response.tenant, responses.c.status.in_(RUNNING))
        with self._database.write() as connection:
            hold(connection, f"responses {response.tenant}")
            if not not_forgotten(connection, [response]):
                return True
            if response.status in RUNNING and connection.execute(running).scalar_one() >= most_running:
                return False
            until = self._now(connection) + LEASE_S
            columns = {**asdict(response), **_shown(response.document), "input": json.dumps(response.input)}
            del columns["began_at"]
            connection.execute(insert(responses).values({**columns, "leased_until": until}))
            _add_events(connection, response.response_id, list(enumerate(events)))
            _make_room(connection, response.tenant, most_bytes)
        return True

    def get(self, tenant: str, response_id: str) -> StoredResponse | None:
        with self._database.read() as connection:
            return _held(connection, _there(tenant, response_id))

    def conversation(self, tenant: str, response_id: str | None, most_bytes: float = math.inf) -> list[StoredResponse]:
        """Return a response and those that it continues, the oldest first; at a gap it ends.

        Raises `InvalidParameter` where they have more bytes.
        """
        turns, size = list[StoredResponse](), 0
        with self._database.read() as connection:
            while row := connection.execute(select(responses).where(_there(tenant, response_id))).mappings().first():
                size += len(row["input"]) + len(row["document"])
                if size > most_bytes:
                    message = f"The conversation has more than {most_bytes} bytes; allowed: fewer."
                    raise InvalidParameter(message, param="previous_response_id")
                turns.append(_response(row))
                response_id = row["previous_id"]
        return turns[::-1]

    def events(self, tenant: str, response_id: str, after: int, most: int = 500) -> tuple[str | None, list[str]]:
        """Return the status of a response, None without one, and the next events behind a sequence number.

        The status says too where there is no event of that number.
        """
        of = response_events.c
        left = (of.response_id == response_id) & (of.number > after)
        page = first_of(of.number, func.length(of.event), left, most_bytes=_PAGE_BYTES, most=most)
        query = select(of.event).where(of.response_id == response_id, of.number.in_(page)).order_by(of.number)
        with self._database.read() as connection:
            status = connection.scalar(select(responses.c.status).where(_there(tenant, response_id)))
            events = [] if status is None else list(connection.scalars(query))
            is_kept = select(of.number).where(of.response_id == response_id, of.number == after)
            if status is not None and not events and after >= 0 and connection.scalar(is_kept) is None:
                status = f"{status}, and has no event {after}"
            return status, events

    def keep(self, news: Sequence[ResponseNews]) -> set[str]:
        """Keep what has happened to responses that run, and their leases; return those that still run or ended so."""
        held = set[str]()
        with self._database.write() as connection:
            until = self._now(connection) + LEASE_S
            for item in sorted(news, key=lambda row: row.response_id):  # in one order for all replicas
                shown = _shown(item.document) if item.document else {}
                values = {**shown, "num_bytes": item.num_bytes, "leased_until": until}
                if connection.execute(update(responses).where(_running(item.response_id)).values(values)).rowcount:
                    _add_events(connection, item.response_id, item.events)
                    held.add(item.response_id)
        return held

    def cancel(self, tenant: str, response_id: str) -> StoredResponse | None:
        """Cancel a response if it still runs; return it as it is then."""
        with self._database.write() as connection:
            held = _held(connection, _there(tenant, response_id))
            if held is None or held.status not in RUNNING:
                return held
            return _end(connection, held, "cancelled", "response.incomplete", {})

    def lost(self) -> list[tuple[str, str]]:
        """Return ids and tenants of the responses whose server is gone: it has not renewed its lease on them."""
        with self._database.read() as connection:
            query = select(responses.c.response_id, responses.c.tenant).where(_lost(self._now(connection)))
            return [(row.response_id, row.tenant) for row in connection.execute(query)]

    def fail_lost(self, response_id: str, error: Json) -> None:
        """Fail a response if its server is gone."""
        with self._database.write() as connection:
            which = (responses.c.response_id == response_id) & _lost(self._now(connection))
            row = connection.execute(select(responses).where(which).with_for_update()).mappings().first()
            if row is not None:
                _end(connection, _response(row), "failed", "response.failed", {"error": error})

    def remove(self, tenant: str, response_id: str) -> bool:
        """Delete a response with its events; returns whether there was one."""
        with self._database.write() as connection:
            return _delete(connection, _there(tenant, response_id)) > 0

    def forget(self) -> None:
        """Delete what has expired."""
        is_over = (responses.c.expires_at <= time.time()) & responses.c.status.not_in(RUNNING)
        _delete_all(self._database, is_over)


def forget_tenant(database: Database, tenant: str) -> None:
    """Delete all responses of a tenant, those that run too; raises `StoreUnavailable`."""
    _delete_all(database, responses.c.tenant == tenant)


def _delete_all(database: Database, which: ColumnElement[bool]) -> None:
    """Delete responses in small transactions."""
    some = select(responses.c.response_id).where(which).limit(_RESPONSES_A_DELETION)
    database.repeat(lambda connection: _delete(connection, responses.c.response_id.in_(some)))


def _there(tenant: str, response_id: str | None) -> ColumnElement[bool]:
    of = responses.c
    return (of.response_id == response_id) & (of.tenant == tenant) & (of.expires_at > time.time())


def _lost(now: float) -> ColumnElement[bool]:
    return responses.c.status.in_(RUNNING) & (responses.c.leased_until <= now)


def _running(response_id: str) -> ColumnElement[bool]:
    return (responses.c.response_id == response_id) & responses.c.status.in_(RUNNING)


def _held(connection: Connection, which: ColumnElement[bool]) -> StoredResponse | None:
    row = connection.execute(select(responses).where(which)).mappings().first()
    return None if row is None else _response(row)


def _end(
    connection: Connection, held: StoredResponse, status: Literal["cancelled", "failed"], kind: str, changes: Json
) -> StoredResponse | None:
    """End a response from outside of its server; one whose events are kept gets a last one."""
    ended = replace(held, document={**held.document, **changes, "status": status})
    if connection.execute(update(responses).where(_running(held.response_id)).values(_shown(ended.document))).rowcount:
        of = response_events.c
        last = connection.scalar(select(func.max(of.number)).where(of.response_id == held.response_id))
        if last is not None:
            event = {"type": kind, "response": ended.document, "sequence_number": last + 1}
            _add_events(connection, held.response_id, [(last + 1, json.dumps(event))])
    return _held(connection, responses.c.response_id == held.response_id)


def _add_events(connection: Connection, response_id: str, events: Sequence[tuple[int, str]]) -> None:
    if events:
        rows = [{"response_id": response_id, "number": number, "event": event} for number, event in events]
        connection.execute(insert(response_events), rows)


def _make_room(connection: Connection, tenant: str, most_bytes: int) -> None:
    """Delete the oldest responses of a tenant that are too many or too large; the newest one stays."""
    of = responses.c
    newest = (of.created_at.desc(), of.response_id)
    place, size = func.row_number().over(order_by=newest), func.sum(of.num_bytes).over(order_by=newest)
    ranked = select(of.response_id, of.status, place.label("place"), size.label("size")).where(of.tenant == tenant)
    at = ranked.subquery().c
    is_over = (at.place > MOST_STORED) | ((at.size > most_bytes) & (at.place > 1))
    _delete(connection, of.response_id.in_(select(at.response_id).where(is_over, at.status.not_in(RUNNING))))


def _delete(connection: Connection, which: ColumnElement[bool]) -> int:
    """Delete responses, and then their events: none is added to one that is not there."""
    ids = list(connection.scalars(select(responses.c.response_id).where(which)))
    number = connection.execute(delete(responses).where(responses.c.response_id.in_(ids))).rowcount
    connection.execute(delete(response_events).where(response_events.c.response_id.in_(ids)))
    return number


def _shown(document: Json) -> dict[str, object]:
    return {"status": document["status"], "document": json.dumps(document)}


def _response(row: RowMapping) -> StoredResponse:
    fields = {name: value for name, value in row.items() if name not in ("leased_until", "status")}
    return StoredResponse(**{**fields, "document": json.loads(row["document"]), "input": json.loads(row["input"])})
