"""/admin/audit: entries of the audit log, and replays of their requests."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Annotated, Literal, Self, TypeVar

from anyio import to_thread
from fastapi.responses import JSONResponse, Response
from pydantic import AwareDatetime, Field, model_validator

from prolepsis.control.audit import chain
from prolepsis.control.audit.bundle import Bundle, Form, bundle_of, exported, to_json
from prolepsis.control.audit.changes import NO_CHANGES, ChangesReply, RecentChanges
from prolepsis.control.audit.entry import RECORDING, SERVED, AuditEntry
from prolepsis.control.audit.lookup import FoundRequest, find_request
from prolepsis.control.audit.verify import Anchor
from prolepsis.control.store.signing import SignedHead
from prolepsis.control.store.store import Store
from prolepsis.control.web.body_reader import read_body, read_query
from prolepsis.control.web.caller import SignedIn
from prolepsis.control.web.errors import RequestRefused
from prolepsis.control.web.fields import Body, Reply
from prolepsis.control.web.routes import AUDITORS, Route, Routes
from prolepsis.core.audit_event import AuditEvent, Emit
from prolepsis.core.engine_client import EngineInfo
from prolepsis.core.errors import InvalidParameter, StoreUnavailable
from prolepsis.core.recording import Recording, Replayed, SampleDifference, parse
from prolepsis.core.stored_text import storable

_Read = TypeVar("_Read")
MAX_ENTRIES = 500
REPLAY_TIMEOUT_S = 60.0  # how long a replay may wait for another one and take


class AuditQuery(Body):
    """The entries to return: the last ones, or with `after` those that follow a number.

    With `since` and `until` those of a period, except those of served requests.
    """

    last: Annotated[int, Field(ge=1, le=MAX_ENTRIES)] = 20
    after: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    action: Annotated[str, Field(max_length=128)] | None = None
    tenant: Annotated[str, Field(max_length=256)] | None = None
    since: AwareDatetime | None = None
    until: AwareDatetime | None = None
    changes: bool = False  # with the changes of the last day

    @model_validator(mode="after")
    def _a_period_has_both_ends(self) -> Self:
        if (self.since is None) != (self.until is None):
            raise ValueError("allowed: since and until, both or neither")
        return self


class BundleBody(Body):
    """Part of the request to hand out."""

    form: Form = "redacted"
    sealed_for: Annotated[str, Field(max_length=128)] = ""  # for whom the caller seals it, for the audit log


@dataclass(frozen=True, slots=True)
class AuditReply:
    head: str  # NUMBER:DIGEST of the chain's last entry
    signed_head: SignedHead | None  # the same with its signature; null if its writer had no key
    entries: list[AuditEntry]  # in their order
    changes: ChangesReply | None  # where they are asked for: what was changed in the last day, each thing once


class AuditReplayReply(Reply):
    seq: int
    request_id: str
    outcome: Literal["match", "near_tie", "structural"]
    num_tokens: int
    exactness: Literal["strict", "normal"]
    differences: list[SampleDifference]


Replay = Callable[[Recording, float], Awaitable[Replayed]]  # replays a recording within so many seconds


def audit_routes(store: Store, info: Callable[[], EngineInfo], replay_now: Replay, emit: Emit) -> Sequence[Route]:
    """Return the routes that show entries and replay their requests."""
    routes = Routes()
    recent = RecentChanges(store.database)

    @routes.get("/admin/audit", roles=AUDITORS, summary="Entries of the audit log", reply=AuditReply)
    async def audit(query: Annotated[AuditQuery, read_query(AuditQuery)]) -> JSONResponse:
        head, signed, entries = await reading(lambda: _entries(store, query))
        changes = (await reading(recent.read) if store.writer.is_on else NO_CHANGES) if query.changes else None
        return JSONResponse(
            {
                "head": head,
                "signed_head": signed and signed.plain(),
                "entries": [entry.plain() for entry in entries],
                "changes": changes and asdict(changes),
            }
        )

    @routes.get(
        "/admin/audit/{entry}",
        roles=AUDITORS,
        summary="One entry, by its number or a name of its request",
        reply=AuditEntry,
    )
    async def one(entry: str) -> JSONResponse:
        return JSONResponse((await reading(lambda: _entry(store, entry))).plain())

    @routes.post(
        "/admin/requests/{name}/bundle",
        roles=AUDITORS,
        summary="What another machine needs to replay a request",
        reply=Bundle,
    )
    async def bundle(name: str, body: Annotated[BundleBody, read_body(BundleBody)], caller: SignedIn) -> Response:
        contents = await reading(lambda: _bundle(store, name, body.form))
        emit(exported(contents, caller.actor, body.sealed_for))
        return Response(to_json(contents), media_type="application/json")

    @routes.post(
        "/admin/audit/{entry}/replay",
        roles=AUDITORS,
        summary="Replay a recorded request without speculation",
        errors=(409, 504),
    )
    async def replay(entry: str, caller: SignedIn) -> AuditReplayReply:
        served = await reading(lambda: _entry(store, entry, SERVED))
        recorded, here = recorded_in(served), info()
        if (given := served.versions.get("fingerprint")) != here.fingerprint:
            message = f"Entry {served.seq} is of the model {given}; this server has {here.fingerprint}."
            raise RequestRefused(message, code="other_model", param="entry", status=409)
        reply = replay_reply(served, await replay_now(recorded, REPLAY_TIMEOUT_S), here.exactness)
        event = AuditEvent(
            actor=caller.actor,
            action="request.replayed",
            subject=reply.request_id,
            names=(reply.request_id,),
            after={"entry": reply.seq, "outcome": reply.outcome},
            tenant=served.details.tenant if served.details else "",
        )
        emit(event)
        return reply

    return routes.all


async def reading(read: Callable[[], _Read]) -> _Read:
    """Read off the event loop; raises `RequestRefused` (503) if the store is unavailable."""
    try:
        return await to_thread.run_sync(read)
    except StoreUnavailable:
        raise RequestRefused("The store cannot be read now.", code="store_unavailable", status=503) from None


def _entries(store: Store, query: AuditQuery) -> tuple[str, SignedHead | None, list[AuditEntry]]:
    with store.database.read() as connection:
        head, signed = str(Anchor(*chain.head(connection))), chain.signed_head(connection)
        if query.since is not None and query.until is not None:
            page = chain.written_page(connection, query.since, query.until, query.after or 0, query.last)
            return head, signed, page
        if query.after is not None:
            return head, signed, chain.page(connection, query.after, query.last)
        return head, signed, chain.newest(connection, query.last, action=query.action, tenant=query.tenant)


def found_request(store: Store, name: str) -> FoundRequest:
    """Return what the store has of a request; raises `RequestRefused` (404)."""
    with store.database.read() as connection:
        request = find_request(connection, storable(name))
    if request.records or request.audit_entries:
        return request
    raise _not_found(name)


def _not_found(name: str) -> RequestRefused:
    message = f"No request is known as {name[:128]!r}; allowed: x-request-id, trace id, answer id, number of an entry."
    return RequestRefused(message, code="request_not_found", param="name", status=404)


def _bundle(store: Store, name: str, form: Form) -> Bundle:
    with store.database.read() as connection, suppress(InvalidParameter):
        return bundle_of(connection, storable(name), form)
    raise _not_found(name)


def _entry(store: Store, name: str, action: str | None = None) -> AuditEntry:
    with store.database.read() as connection:
        match = chain.find(connection, storable(name), action=action)
    if match is not None:
        return match
    message = f"There is no audit entry {name[:128]!r}; allowed: a number, or the id of a request that has one."
    raise RequestRefused(message, code="audit_entry_not_found", param="entry", status=404)


def recorded_in(entry: AuditEntry) -> Recording:
    """Return the recording that an entry holds; raises `InvalidParameter` saying why it holds none."""
    details = entry.details
    if details is None:
        raise InvalidParameter(f"entry {entry.seq} has been erased; allowed: an entry that still has its details")
    after = details.after if isinstance(details.after, dict) else {}
    if RECORDING not in after:
        why = "its text was redacted" if after.get("replayable") is False else f"it is of {entry.action}"
        message = f"entry {entry.seq} holds no tokens, as {why}; allowed: {SERVED}, kept with audit_content tokens"
        raise InvalidParameter(message, param="entry")
    return parse(after[RECORDING], details.subject)


def replay_reply(entry: AuditEntry, replayed: Replayed, exactness: Literal["strict", "normal"]) -> AuditReplayReply:
    """Return the reply for an entry whose request was decoded again."""
    assert entry.details is not None, "an erased entry cannot be decoded again"
    return AuditReplayReply(
        seq=entry.seq,
        request_id=entry.details.subject,
        outcome=replayed.outcome,
        num_tokens=replayed.num_tokens,
        exactness=exactness,
        differences=replayed.shown,
    )
