"""The chain in its table: appended to by one at a time, read in pages, erased in part."""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, insert, select, update

from prolepsis.audit.entry import START_OF_CHAIN, AuditEntry, Told, canonical
from prolepsis.audit.prepared import Prepared, prepared
from prolepsis.core.audit_event import AuditEvent
from prolepsis.store.tables import audit_entries, audit_head

_PAGE = 500
_LONGEST_NUMBER = 19
"""Digits that a number in the table has at most, and one more."""
_TOLD = ("actor", "tenant", "subject", "before", "after", "salt")


def append(
    connection: Connection, given: Sequence[AuditEvent | Prepared], erases: Sequence[int] = ()
) -> list[AuditEntry]:
    """Append acts, redacted, and return the entry of each; one whose uid is in the chain already has its entry.

    Others who append wait until the transaction ends. Durable when it has; before that nothing is promised.
    """
    acts = [prepared(act) if isinstance(act, AuditEvent) else act for act in given]
    seq, digest = head(connection, hold=True)
    of_acts = audit_entries.c.uid.in_([act.uid for act in acts])
    found = {row["uid"]: _read(row) for row in connection.execute(select(audit_entries).where(of_acts)).mappings()}
    added = []
    for act in acts:
        if act.uid not in found:
            seq += 1
            found[act.uid] = _entry(act, seq, digest, tuple(erases))
            added.append(found[act.uid])
            digest = found[act.uid].digest
    if added:
        connection.execute(insert(audit_entries), [_row(entry) for entry in added])
        connection.execute(update(audit_head).values(seq=seq, digest=digest))
    return [found[act.uid] for act in acts]


def head(connection: Connection, *, hold: bool = False) -> tuple[int, str]:
    """Return number and digest of the last entry, (0, `START_OF_CHAIN`) before the first.

    `hold`: nobody else may append until the transaction ends.
    """
    query = select(audit_head.c.seq, audit_head.c.digest)
    row = connection.execute(query.with_for_update() if hold else query).first()  # SQLite's writers are alone anyway
    return (0, START_OF_CHAIN) if row is None else (row.seq, row.digest)


def entries(connection: Connection, after: int = 0) -> Iterator[AuditEntry]:
    """Yield entries in their order, from the one after number `after` on."""
    while True:
        found = page(connection, after, _PAGE)
        yield from found
        if len(found) < _PAGE:
            return
        after = found[-1].seq


def find(connection: Connection, name: str, *, action: str | None = None) -> AuditEntry | None:
    """Return the entry of a number, else the newest one about a subject of that name; of one `action`, where given."""
    is_number = name.isascii() and name.isdigit() and len(name) < _LONGEST_NUMBER
    query = select(audit_entries).order_by(audit_entries.c.seq.desc()).limit(1)
    query = query.where(audit_entries.c.seq == int(name) if is_number else audit_entries.c.subject == name)
    if action is not None and not is_number:
        query = query.where(audit_entries.c.action == action)
    row = connection.execute(query).mappings().first()
    return None if row is None else _read(row)


def page(connection: Connection, after: int, limit: int) -> list[AuditEntry]:
    """Return the entries that follow number `after`, at most so many."""
    query = select(audit_entries).where(audit_entries.c.seq > after).order_by(audit_entries.c.seq).limit(limit)
    return [_read(row) for row in connection.execute(query).mappings()]


def newest(
    connection: Connection, limit: int, *, action: str | None = None, tenant: str | None = None
) -> list[AuditEntry]:
    """Return the last entries, of one action or about one tenant where that is given, in their order."""
    query = select(audit_entries).order_by(audit_entries.c.seq.desc()).limit(limit)
    if action is not None:
        query = query.where(audit_entries.c.action == action)
    if tenant is not None:
        query = query.where(audit_entries.c.tenant == tenant)
    return [_read(row) for row in reversed(connection.execute(query).mappings().all())]


def erase(connection: Connection, tenant: str, act: AuditEvent) -> AuditEntry:
    """Erase what the entries about a tenant tell, and append the act, whose entry says which these were."""
    head(connection, hold=True)
    of_tenant = audit_entries.c.tenant == tenant
    seqs = tuple(connection.scalars(select(audit_entries.c.seq).where(of_tenant).order_by(audit_entries.c.seq)))
    connection.execute(update(audit_entries).where(of_tenant).values(dict.fromkeys(_TOLD)))
    [entry] = append(connection, [act], erases=seqs)
    return entry


def _entry(act: Prepared, seq: int, previous: str, erases: tuple[int, ...]) -> AuditEntry:
    chained: dict[str, Any] = {
        "seq": seq,
        "uid": act.uid,
        "at": datetime.now(UTC).isoformat(timespec="microseconds"),
        "action": act.action,
        "versions": act.versions,
        "erases": erases,
        "told": act.told,
        "told_digest": act.told.digest(),
        "previous": previous,
    }
    return AuditEntry(**chained, digest=AuditEntry(**chained, digest="").expected_digest())


def _row(entry: AuditEntry) -> dict[str, object]:
    told = entry.told
    assert told is not None, "an entry is erased after it was stored"
    return {
        "seq": entry.seq,
        "uid": entry.uid,
        "at": entry.at,
        "action": entry.action,
        "versions": canonical(entry.versions),
        "erases": canonical(entry.erases),
        **{name: getattr(told, name) for name in ("actor", "tenant", "subject", "salt")},
        "before": canonical(told.before),
        "after": canonical(told.after),
        "told_digest": entry.told_digest,
        "previous": entry.previous,
        "digest": entry.digest,
    }


def _read(row: Mapping[Any, Any]) -> AuditEntry:
    told = {name: row[name] for name in _TOLD}
    erased = all(value is None for value in told.values())
    if not erased:
        told["before"], told["after"] = _parsed(told["before"]), _parsed(told["after"])
    return AuditEntry(
        **{name: row[name] for name in ("seq", "uid", "at", "action", "told_digest", "previous", "digest")},
        versions=_parsed(row["versions"]),
        erases=tuple(numbers) if isinstance(numbers := _parsed(row["erases"]), list) else (numbers,),
        told=None if erased else Told(**told),
    )


def _parsed(text: str | None) -> Any:
    """Return what a JSON text says; of one that was damaged the text itself, which no digest fits."""
    try:
        return json.loads(text or "")
    except ValueError:
        return text
