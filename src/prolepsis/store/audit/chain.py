"""The chain in its table: appended to by one at a time, read in pages, erased in part."""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, insert, select, update

from prolepsis.store.audit.entry import START_OF_CHAIN, Act, AuditEntry, Told, canonical, new_salt
from prolepsis.store.audit.redaction import redacted, redacted_text, storable
from prolepsis.store.tables import audit_entries, audit_head

_PAGE = 500
_TOLD = ("actor", "tenant", "subject", "before", "after", "salt")


def append(connection: Connection, acts: Sequence[Act], erases: Sequence[int] = ()) -> list[AuditEntry]:
    """Redact acts and append them; those whose uid is in the chain already are left out.

    Others who append wait until the transaction ends. Durable when it has; before that nothing is promised.
    """
    seq, digest = head(connection, hold=True)
    uids = [act.uid for act in acts]
    known = set(connection.scalars(select(audit_entries.c.uid).where(audit_entries.c.uid.in_(uids))))
    entries = []
    for act in acts:
        if act.uid not in known:
            seq += 1
            entries.append(_entry(act, seq, digest, tuple(erases)))
            digest = entries[-1].digest
    if entries:
        connection.execute(insert(audit_entries), [_row(entry) for entry in entries])
        connection.execute(update(audit_head).values(seq=seq, digest=digest))
    return entries


def head(connection: Connection, *, hold: bool = False) -> tuple[int, str]:
    """Return number and digest of the last entry, (0, `START_OF_CHAIN`) before the first.

    `hold`: nobody else may append until the transaction ends.
    """
    query = select(audit_head.c.seq, audit_head.c.digest)
    row = connection.execute(query.with_for_update() if hold else query).first()  # SQLite's writers are alone anyway
    return (0, START_OF_CHAIN) if row is None else (row.seq, row.digest)


def entries(
    connection: Connection, after: int = 0, *, action: str | None = None, tenant: str | None = None
) -> Iterator[AuditEntry]:
    """Yield entries in their order, from the one after number `after` on."""
    columns = audit_entries.c
    query = select(audit_entries).order_by(columns.seq).limit(_PAGE)
    if action is not None:
        query = query.where(columns.action == action)
    if tenant is not None:
        query = query.where(columns.tenant == tenant)
    while True:
        page = [_read(row) for row in connection.execute(query.where(columns.seq > after)).mappings()]
        yield from page
        if len(page) < _PAGE:
            return
        after = page[-1].seq


def erase(connection: Connection, tenant: str, act: Act) -> AuditEntry:
    """Erase what the entries about a tenant tell, and append the act, whose entry says which these were."""
    head(connection, hold=True)
    of_tenant = audit_entries.c.tenant == tenant
    seqs = tuple(connection.scalars(select(audit_entries.c.seq).where(of_tenant).order_by(audit_entries.c.seq)))
    connection.execute(update(audit_entries).where(of_tenant).values(dict.fromkeys(_TOLD)))
    [entry] = append(connection, [act], erases=seqs)
    return entry


def _entry(act: Act, seq: int, previous: str, erases: tuple[int, ...]) -> AuditEntry:
    told = Told(
        actor=storable(act.actor),
        tenant=storable(act.tenant),
        subject=redacted_text(act.subject),
        before=redacted(act.before),
        after=redacted(act.after),
        salt=new_salt(),
    )
    chained: dict[str, Any] = {
        "seq": seq,
        "uid": act.uid,
        "at": datetime.now(UTC).isoformat(timespec="microseconds"),
        "action": storable(act.action),
        "versions": {storable(name): storable(version) for name, version in act.versions.items()},
        "erases": erases,
        "told": told,
        "told_digest": told.digest(),
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
