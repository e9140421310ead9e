"""The chain in its table: one writer appends at a time; entries are read in pages, and their details can be erased."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, delete, func, insert, select, true, update

from prolepsis.control.audit.entry import (
    HEAD_INVALID,
    HEAD_UNSIGNED,
    SERVED,
    START_OF_CHAIN,
    AuditEntry,
    Details,
    RedactedEvent,
    name_digest,
    redact,
)
from prolepsis.control.store.pages import first_of
from prolepsis.control.store.signing import SignedHead, keys_of, signed_columns, signed_row
from prolepsis.control.store.tables import audit_entries, audit_head, audit_names
from prolepsis.core.audit_event import SERVER, AuditEvent
from prolepsis.core.json_value import canonical, whole_numbers

_PAGE, _PAGE_BYTES = 500, 2**24
_LONGEST_NUMBER = 19
"""One more digit than the largest number in the table."""
_DETAILS = ("actor", "tenant", "subject", "before", "after", "salt")


def append(
    connection: Connection, events: Sequence[AuditEvent | RedactedEvent], erases: Sequence[int] = ()
) -> list[AuditEntry]:
    """Append events, redacted, and return the entry of each; an event whose uid is in the chain already has its entry.

    Other writers wait until the transaction ends. The entries are durable afterwards. The head is signed if the
    connection has keys; raises `ConfigError` if they cannot be used.
    """
    redacted = [redact(event) if isinstance(event, AuditEvent) else event for event in events]
    seq, digest = head(connection, hold=True)
    known = select(audit_entries).where(audit_entries.c.uid.in_([event.uid for event in redacted]))
    found = {row["uid"]: _read(row) for row in connection.execute(known).mappings()}
    added: list[AuditEntry] = []
    if any(event.uid not in found for event in redacted) and (notice := _notice(connection)) is not None:
        added.append(_entry(redact(notice), seq + 1, digest, ()))
    for event in redacted:
        if event.uid not in found:
            last = (added[-1].seq, added[-1].digest) if added else (seq, digest)
            found[event.uid] = _entry(event, last[0] + 1, last[1], tuple(erases))
            added.append(found[event.uid])
    if added:
        connection.execute(insert(audit_entries), [_row(entry) for entry in added])
        _set_names(connection, {entry.uid: entry.seq for entry in added}, redacted)
        _set_head(connection, added[-1])
    return [found[event.uid] for event in redacted]


def _set_names(connection: Connection, added: Mapping[str, int], events: Sequence[RedactedEvent]) -> None:
    pairs = {(name, added[event.uid]) for event in events if event.uid in added for name in event.names}
    if pairs:
        connection.execute(insert(audit_names), [{"name_digest": name, "seq": seq} for name, seq in sorted(pairs)])


def _set_head(connection: Connection, last: AuditEntry) -> None:
    keys = keys_of(connection)
    signed = keys.sign("audit", last.seq, last.digest) if keys is not None else None
    connection.execute(update(audit_head).values(seq=last.seq, digest=last.digest, **signed_columns(signed)))


def _notice(connection: Connection) -> AuditEvent | None:
    """Return what the next entry has to say about the present head, so that no signature follows a forged one."""
    keys, last = keys_of(connection), head(connection)
    if keys is None or not last[0]:
        return None
    signed = signed_head(connection)
    after = {"seq": last[0], "digest": last[1]}
    if signed is None:
        return AuditEvent(actor=SERVER, action=HEAD_UNSIGNED, after=after)
    fault = keys.public.fault(signed)
    return None if fault is None else AuditEvent(actor=SERVER, action=HEAD_INVALID, after={**after, "head": fault})


def head(connection: Connection, *, hold: bool = False) -> tuple[int, str]:
    """Return number and digest of the last entry, (0, `START_OF_CHAIN`) before the first.

    `hold`: no other writer may append until the transaction ends.
    """
    query = select(audit_head.c.seq, audit_head.c.digest)
    row = connection.execute(query.with_for_update() if hold else query).first()  # SQLite's writers are alone anyway
    return (0, START_OF_CHAIN) if row is None else (row.seq, row.digest)


def signed_head(connection: Connection) -> SignedHead | None:
    """Return the head with its signature, None if it has none."""
    return signed_row("audit", connection.execute(select(audit_head)).first())


def digest_at(connection: Connection, seq: int) -> str | None:
    """Return the digest of an entry, None if there is no such entry."""
    digest: str | None = connection.scalar(select(audit_entries.c.digest).where(audit_entries.c.seq == seq))
    return digest


def entries(connection: Connection, after: int = 0) -> Iterator[AuditEntry]:
    """Yield entries in their order, starting after number `after`."""
    while True:
        found = page(connection, after, _PAGE)
        if not found:
            return
        yield from found
        after = found[-1].seq


def find(connection: Connection, name: str, *, action: str | None = None) -> AuditEntry | None:
    """Return the entry of a number, else the newest one with that name or subject, with `action` if given."""
    found = about(connection, name, 1, action=None if _is_number(name) else action)
    return found[-1] if found else None


def about(connection: Connection, name: str, limit: int, *, action: str | None = None) -> list[AuditEntry]:
    """Return the entry of a number, else the newest ones with that name or subject, in their order."""
    if _is_number(name):
        return _some(connection, limit, audit_entries.c.seq == int(name))
    found = named(connection, [name], limit, action=action)
    if found:
        return found
    is_about = audit_entries.c.subject == name  # has no index: a scan
    return _some(connection, limit, is_about if action is None else is_about & (audit_entries.c.action == action))


def named(connection: Connection, names: Iterable[str], limit: int, *, action: str | None = None) -> list[AuditEntry]:
    """Return the newest entries that have one of these names, in their order."""
    digests = [name_digest(name) for name in names]
    has_name = audit_entries.c.seq.in_(select(audit_names.c.seq).where(audit_names.c.name_digest.in_(digests)))
    return _some(connection, limit, has_name if action is None else has_name & (audit_entries.c.action == action))


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdigit() and len(name) < _LONGEST_NUMBER


def page(connection: Connection, after: int, limit: int) -> list[AuditEntry]:
    """Return the next entries that follow number `after`: at most `limit`, and `_PAGE_BYTES`."""
    return _some(connection, limit, audit_entries.c.seq > after, last=False)


def written(connection: Connection, since: datetime, until: datetime) -> Iterator[AuditEntry]:
    """Yield the entries of a period in their order, except those of served requests; times have no index: scans."""
    after = 0
    while found := written_page(connection, since, until, after, _PAGE):
        yield from found
        after = found[-1].seq


def written_page(connection: Connection, since: datetime, until: datetime, after: int, limit: int) -> list[AuditEntry]:
    """Return the next entries of a period that follow number `after`, except those of served requests, as `page`."""
    entries = audit_entries.c
    in_period = (entries.at >= _stored_time(since)) & (entries.at < _stored_time(until))
    which = in_period & (entries.seq > after) & (entries.action != SERVED)
    return _some(connection, limit, which, last=False)


def last_before(connection: Connection, time: datetime) -> int:
    """Return the number of the last entry that was written before a time, 0 without one.

    By halving, as times have no index and grow with the numbers (except for the clocks of replicas).
    """
    low, high = 0, head(connection)[0]
    while low < high:
        middle = (low + high + 1) // 2
        at = connection.scalar(select(audit_entries.c.at).where(audit_entries.c.seq == middle))
        low, high = (middle, high) if at is not None and at < _stored_time(time) else (low, middle - 1)
    return low


def acts(connection: Connection, after: int, last: int) -> list[tuple[int, str, str | None]]:
    """Return number, action and actor of the entries that follow number `after` up to `last`.

    Those of served requests are left out; an erased actor is None.
    """
    entries = audit_entries.c
    which = (entries.seq > after) & (entries.seq <= last) & (entries.action != SERVED)
    query = select(entries.seq, entries.action, entries.actor).where(which).order_by(entries.seq)
    return [(row.seq, row.action, row.actor) for row in connection.execute(query)]


def numbered(connection: Connection, seqs: Iterable[int]) -> list[AuditEntry]:
    """Return the entries of these numbers, in their order."""
    query = select(audit_entries).where(audit_entries.c.seq.in_([*seqs])).order_by(audit_entries.c.seq)
    return [_read(row) for row in connection.execute(query).mappings()]


def _stored_time(time: datetime) -> str:
    return time.astimezone(UTC).isoformat(timespec="microseconds")


def newest(
    connection: Connection, limit: int, *, action: str | None = None, tenant: str | None = None
) -> list[AuditEntry]:
    """Return the last entries, in their order; `action` and `tenant` restrict them."""
    given = {audit_entries.c.action: action, audit_entries.c.tenant: tenant}
    return _some(connection, limit, *(column == value for column, value in given.items() if value is not None))


def of_version(connection: Connection, area: str, version: str) -> AuditEntry | None:
    """Return the newest entry of an area's actions, such as `policy`, that has this version of it."""
    entries, fragment = audit_entries.c, canonical({area: version})[1:-1]
    of_area = entries.action.startswith(f"{area}.", autoescape=True)
    found = _some(connection, 1, of_area & entries.versions.contains(fragment, autoescape=True))
    return found[0] if found else None


def _some(connection: Connection, limit: int, *which: ColumnElement[bool], last: bool = True) -> list[AuditEntry]:
    """Return the last entries, or the first ones, in their order."""
    of = audit_entries.c
    size = func.coalesce(func.length(of.before), 0) + func.coalesce(func.length(of.after), 0)
    some = first_of(of.seq, size, and_(true(), *which), most_bytes=_PAGE_BYTES, most=limit, last=last)
    return numbered(connection, connection.scalars(some))


def of_tenant(connection: Connection, tenant: str) -> Sequence[int]:
    """Return the numbers of the entries about a tenant."""
    query = select(audit_entries.c.seq).where(audit_entries.c.tenant == tenant).order_by(audit_entries.c.seq)
    return connection.scalars(query).all()


def erase(connection: Connection, seqs: Sequence[int], event: AuditEvent) -> AuditEntry:
    """Erase the details of entries, and append the event, whose entry lists them; the caller holds the head."""
    for first in range(0, len(seqs), _PAGE):
        these = seqs[first : first + _PAGE]
        connection.execute(delete(audit_names).where(audit_names.c.seq.in_(these)))
        connection.execute(update(audit_entries).where(audit_entries.c.seq.in_(these)).values(dict.fromkeys(_DETAILS)))
    [entry] = append(connection, [event], erases=seqs)
    return entry


def _entry(event: RedactedEvent, seq: int, previous: str, erases: tuple[int, ...]) -> AuditEntry:
    chained: dict[str, Any] = {
        "seq": seq,
        "uid": event.uid,
        "at": _stored_time(datetime.now(UTC)),
        "action": event.action,
        "versions": event.versions,
        "erases": erases,
        "details": event.details,
        "details_digest": event.details.digest(),
        "previous": previous,
    }
    return AuditEntry(**chained, digest=AuditEntry(**chained, digest="").expected_digest())


def _row(entry: AuditEntry) -> dict[str, object]:
    details = entry.details
    assert details is not None, "an entry is erased after it was stored"
    return {
        "seq": entry.seq,
        "uid": entry.uid,
        "at": entry.at,
        "action": entry.action,
        "versions": canonical(entry.versions),
        "erases": canonical(entry.erases),
        **{name: getattr(details, name) for name in ("actor", "tenant", "subject", "salt")},
        "before": canonical(details.before),
        "after": canonical(details.after),
        "details_digest": entry.details_digest,
        "previous": entry.previous,
        "digest": entry.digest,
    }


def _read(row: Mapping[Any, Any]) -> AuditEntry:
    details = {name: row[name] for name in _DETAILS}
    erased = all(value is None for value in details.values())
    if not erased:
        details["before"], details["after"] = _parsed(details["before"]), _parsed(details["after"])
    return AuditEntry(
        **{name: row[name] for name in ("seq", "uid", "at", "action", "details_digest", "previous", "digest")},
        versions=_parsed(row["versions"]),
        erases=whole_numbers(row["erases"]),
        details=None if erased else Details(**details),
    )


def _parsed(text: str | None) -> Any:
    """Return the value of a JSON text; if the text is damaged, the text itself, which no digest matches."""
    try:
        return json.loads(text or "")
    except (ValueError, RecursionError):
        return text
