"""Acts that wait for a server to sign them: commands of users without the audit key leave them in the store.

A second key would have the server find a head that it did not sign, for good. Anyone who can write the store can leave
an act, so its entry says that it came without the key.
"""

import time
from dataclasses import replace
from datetime import UTC, datetime

from pydantic import TypeAdapter, ValidationError
from sqlalchemy import Connection

from prolepsis.control.audit import chain
from prolepsis.control.audit.entry import redact
from prolepsis.control.store import documents as of
from prolepsis.control.store.database import Database
from prolepsis.control.store.documents import Documents, StoredDocument
from prolepsis.control.store.signing import FoundKeys
from prolepsis.core.audit_event import SERVER, AuditEvent

WITHOUT_KEY = ", without the audit key"  # ends the actor of an act that waited
_BATCH = 100
_EVENT = TypeAdapter(AuditEvent)
_ACTS = Documents("act", str, str)  # by uid; a text that is no event gets an entry too


def signing_fault(connection: Connection, keys: FoundKeys) -> str:
    """Return why this process must not append to the chain of a store, or an empty text.

    A chain that is not signed may be continued without a key, once it has begun.
    """
    signed = chain.signed_head(connection)
    if keys.keys is None:
        return keys.fault if signed is not None or not chain.head(connection)[0] else ""
    if signed is not None and keys.keys.public.fault(signed) is not None:
        return f"audit key {keys.keys.path} is not one that signs the log of this store (see PROLEPSIS_AUDIT_KEY)"
    return ""


def leave(connection: Connection, event: AuditEvent) -> None:
    """Leave an act, redacted, for a server of this store."""
    details = redact(event).details
    kept = replace(event, subject=details.subject, before=details.before, after=details.after)
    _ACTS.put(connection, [StoredDocument(event.uid, _EVENT.dump_json(kept).decode(), time.time())])


def number(connection: Connection) -> int:
    return _ACTS.count(connection)


def take(database: Database) -> int:
    """Append the acts that wait, the oldest first, and return their number; raises `StoreUnavailable`."""
    with database.read() as connection:
        if not number(connection):
            return 0
    with database.write() as connection:
        acts = _ACTS.list(connection, order=of.at, limit=_BATCH)
        chain.append(connection, [_event(act.key, act.value, act.at) for act in acts])
        _ACTS.remove(connection, of.key.in_([act.key for act in acts]))
    return len(acts)


def _event(uid: str, text: str, left_at: float) -> AuditEvent:
    at = datetime.fromtimestamp(left_at, UTC).isoformat(timespec="seconds")
    try:
        event = _EVENT.validate_json(text)
    except ValidationError:
        return AuditEvent(actor=SERVER, action="audit.act_unreadable", after={"left_at": at, "uid": uid}, uid=uid)
    after = {"left_at": at, "after": event.after}
    return replace(event, uid=uid, actor=event.actor + WITHOUT_KEY, after=after)
