"""The audit log of one process: events in the queue of the store's writer, and the erasure of a tenant's details."""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

import structlog
from sqlalchemy import Connection

from prolepsis.control.audit import chain
from prolepsis.control.audit.entry import SERVED, AuditEntry, RedactedEvent, redact
from prolepsis.control.audit.waiting import take
from prolepsis.control.store import batches, lineage, records, responses, turns
from prolepsis.control.store.database import Database
from prolepsis.control.store.lineage import ForgottenExamples
from prolepsis.control.store.queue import QueueItem
from prolepsis.core.audit_event import AuditEvent
from prolepsis.core.errors import InvalidParameter

log = structlog.get_logger(__name__)

_NAMES = ("http_request_id", "trace_id", "answer_id")


class QueuedEvent(QueueItem):
    """An event that the writer's thread redacts and appends to the chain."""

    kind = "audit"
    began_at = 0.0

    def __init__(self, event: AuditEvent | Callable[[], AuditEvent], age_s: float = 0.0) -> None:
        """`event`: a function makes it in the writer's thread. `age_s`: how long ago what it is about began."""
        self._event = event
        self.began_at = time.time() - age_s
        self.is_slow = not isinstance(event, AuditEvent)
        self._entry: AuditEntry | None = None

    @cached_property
    def redacted(self) -> RedactedEvent:
        """The event, made and redacted once even if the write is tried again."""
        return redact(self._event if isinstance(self._event, AuditEvent) else self._event())

    @property
    def tenant(self) -> str:
        return self.redacted.details.tenant

    def prepare(self) -> None:
        _ = self.redacted

    def written(self) -> None:
        """Say in the log which entry a request has, with the names by which people know the request."""
        entry = self._entry
        if entry is not None and entry.action == SERVED and entry.details is not None:
            after = entry.details.after
            names = {name: after.get(name) for name in _NAMES} if isinstance(after, dict) else {}
            log.info("request_audited", entry=entry.seq, engine_request_id=entry.details.subject, **names)

    @classmethod
    def write(cls, connection: Connection, items: Sequence["QueuedEvent"]) -> None:
        for item, entry in zip(items, chain.append(connection, [item.redacted for item in items]), strict=True):
            item._entry = entry


@dataclass(frozen=True, slots=True)
class ForgottenTenant:
    num_records: int
    learnt: ForgottenExamples
    entry: AuditEntry  # it lists the erased entries and names no person


def forget_tenant(database: Database, tenant: str, actor: str, *, later: Collection[str] = ()) -> ForgottenTenant:
    """Delete a tenant's files, batches, responses, records and examples, then erase the details of the audit entries.

    The chain still verifies. Heads that learnt from the tenant are retired, but at their rule's next promotion where
    `later` has the rule. Acts that wait for a server get their entries first. Of requests that have begun before,
    running servers write nothing afterwards. If this fails half way, it can be repeated from the start. Raises
    `StoreUnavailable`, and `InvalidParameter` if the name is empty.
    """
    if not tenant:
        raise InvalidParameter("tenant is empty; allowed: the name of a tenant", param="tenant")
    batches.forget_tenant(database, tenant)
    responses.forget_tenant(database, tenant)
    turns.forget(database, tenant)  # what is written meanwhile is deleted below, and what comes later is not written
    responses.forget_tenant(database, tenant)
    num_records = records.forget(database, tenant)
    learnt = lineage.forget(database, tenant=tenant, later=later)
    while take(database):
        pass
    after = {"request_records": num_records, "examples": learnt.num_examples, "heads_retired": learnt.retired}
    event = AuditEvent(actor=actor, action="tenant.forgotten", after=after)
    with database.write() as connection:
        chain.head(connection, hold=True)
        chain.append(
            connection, [AuditEvent(actor=actor, action="head.retired", subject=head) for head in learnt.retired]
        )
        entry = chain.erase(connection, chain.of_tenant(connection, tenant), event)
    return ForgottenTenant(num_records, learnt, entry)
