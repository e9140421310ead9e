"""The chain in its table: one writer appends at a time; entries are read in pages, and their details can be erased."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime

from sqlalchemy import ColumnElement, Connection, RowMapping, and_, delete, func, insert, select, update

from prolepsis.control.audit.entry import SERVED, AuditEntry, Details, RedactedEvent, name_digest, redact
from prolepsis.control.store import links
from prolepsis.control.store.pages import first_of
from prolepsis.control.store.tables import chain_links, chain_names
from prolepsis.core.audit_event import SERVER, AuditEvent
from prolepsis.core.json_value import canonical

of = chain_links.c
OF_ACTS = of.chain == "audit"
head, signed_head = links.head, links.signed_head
_PAGE, _PAGE_BYTES = 500, 2**24
_LONGEST_NUMBER = 19  # one more digit than the largest number in the table
_DETAILS = ("actor", "tenant", "subject", "before", "after", "salt")


def append(
    connection: Connection, events: Sequence[AuditEvent | RedactedEvent], erases: Sequence[int] = ()
) -> list[AuditEntry]:
    """Append events, redacted, and return the entry of each; an event whose uid is in the chain already has its entry.

    Other writers wait until the transaction ends. The entries are durable afterwards. The head is signed if the
    connection has keys; raises `ConfigError` if they cannot be used.
    """
    redacted = [redact(event) if isinstance(event, AuditEvent) else event for event in events]
    head(connection, hold=True)
    known = select(chain_links).where(OF_ACTS, of.uid.in_([event.uid for event in redacted]))
    stored = {row["uid"]: _read(row) for row in connection.execute(known).mappings()}
    new = {event.uid: _entry(event, tuple(erases)) for event in redacted if event.uid not in stored}
    added = links.append(connection, "audit", [*new.values()], _notice)
    stored |= {entry.uid: entry for entry in added}
    names = {(name, stored[event.uid].seq) for event in redacted if event.uid in new for name in event.names}
    if names:
        connection.execute(insert(chain_names), [{"name_digest": name, "seq": seq} for name, seq in sorted(names)])
    return [stored[event.uid] for event in redacted]


def _notice(action: str, after: Mapping[str, object]) -> AuditEntry:
    return _entry(redact(AuditEvent(actor=SERVER, action=action, after=after)), ())


def _entry(event: RedactedEvent, erases: tuple[int, ...]) -> AuditEntry:
    """Return the entry of an event, which its place in the chain completes."""
    return AuditEntry(
        seq=0,
        uid=event.uid,
        at=_stored_time(datetime.now(UTC)),
        action=event.action,
        versions=event.versions,
        erases=erases,
        details=event.details,
        details_digest=event.details.digest(),
        previous="",
        digest="",
    )


def entries(connection: Connection, after: int = 0) -> Iterator[AuditEntry]:
    """Yield entries in their order, starting after number `after`."""
    while batch := page(connection, after, _PAGE):
        yield from batch
        after = batch[-1].seq


def find(connection: Connection, name: str, *, action: str | None = None) -> AuditEntry | None:
    """Return the entry of a number, else the newest one with that name or subject, with `action` if given."""
    matching = about(connection, name, 1, action=None if _is_number(name) else action)
    return matching[-1] if matching else None


def about(connection: Connection, name: str, limit: int, *, action: str | None = None) -> list[AuditEntry]:
    """Return the entry of a number, else the newest ones with that name or subject, in their order."""
    if _is_number(name):
        return _some(connection, limit, of.seq == int(name))
    matching = named(connection, [name], limit, action=action)
    if matching:
        return matching
    is_about = of.subject == name  # has no index: a scan
    return _some(connection, limit, is_about if action is None else is_about & (of.action == action))


def named(connection: Connection, names: Iterable[str], limit: int, *, action: str | None = None) -> list[AuditEntry]:
    """Return the newest entries that have one of these names, in their order."""
    digests = [name_digest(name) for name in names]
    has_name = of.seq.in_(select(chain_names.c.seq).where(chain_names.c.name_digest.in_(digests)))
    return _some(connection, limit, has_name if action is None else has_name & (of.action == action))


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdigit() and len(name) < _LONGEST_NUMBER


def page(connection: Connection, after: int, limit: int) -> list[AuditEntry]:
    """Return the next entries that follow number `after`: at most `limit`, and `_PAGE_BYTES`."""
    return _some(connection, limit, of.seq > after, last=False)


def written(connection: Connection, since: datetime, until: datetime) -> Iterator[AuditEntry]:
    """Yield the entries of a period in their order, except those of served requests; times have no index: scans."""
    after = 0
    while batch := written_page(connection, since, until, after, _PAGE):
        yield from batch
        after = batch[-1].seq


def written_page(connection: Connection, since: datetime, until: datetime, after: int, limit: int) -> list[AuditEntry]:
    """Return the next entries of a period that follow number `after`, except those of served requests, as `page`."""
    in_period = (of.at >= _stored_time(since)) & (of.at < _stored_time(until))
    which = in_period & (of.seq > after) & (of.action != SERVED)
    return _some(connection, limit, which, last=False)


def last_before(connection: Connection, time: datetime) -> int:
    """Return the number of the last entry that was written before a time, 0 without one.

    By halving, as times have no index and grow with the numbers (except for the clocks of replicas).
    """
    low, high = 0, head(connection)[0]
    while low < high:
        middle = (low + high + 1) // 2
        at = connection.scalar(select(of.at).where(OF_ACTS, of.seq == middle))
        low, high = (middle, high) if at is not None and at < _stored_time(time) else (low, middle - 1)
    return low


def acts(connection: Connection, after: int, last: int) -> list[tuple[int, str, str | None]]:
    """Return number, action and actor of the entries that follow number `after` up to `last`.

    Those of served requests are left out; an erased actor is None.
    """
    which = (of.seq > after) & (of.seq <= last) & (of.action != SERVED)
    query = select(of.seq, of.action, of.actor).where(OF_ACTS, which).order_by(of.seq)
    return [(row.seq, row.action, row.actor) for row in connection.execute(query)]


def numbered(connection: Connection, seqs: Iterable[int]) -> list[AuditEntry]:
    """Return the entries of these numbers, in their order."""
    query = select(chain_links).where(OF_ACTS, of.seq.in_([*seqs])).order_by(of.seq)
    return [_read(row) for row in connection.execute(query).mappings()]


def _stored_time(time: datetime) -> str:
    return time.astimezone(UTC).isoformat(timespec="microseconds")


def newest(
    connection: Connection, limit: int, *, action: str | None = None, tenant: str | None = None
) -> list[AuditEntry]:
    """Return the last entries, in their order; `action` and `tenant` restrict them."""
    given = {of.action: action, of.tenant: tenant}
    return _some(connection, limit, *(column == value for column, value in given.items() if value is not None))


def of_version(connection: Connection, area: str, version: str) -> AuditEntry | None:
    """Return the newest entry of an area's actions, such as `policy`, that has this version of it."""
    fragment = canonical({area: version})[1:-1]
    of_area = of.action.startswith(f"{area}.", autoescape=True)
    matching = _some(connection, 1, of_area & of.versions.contains(fragment, autoescape=True))
    return matching[0] if matching else None


def _some(connection: Connection, limit: int, *which: ColumnElement[bool], last: bool = True) -> list[AuditEntry]:
    """Return the last entries, or the first ones, in their order."""
    size = func.coalesce(func.length(of.before), 0) + func.coalesce(func.length(of.after), 0)
    some = first_of(of.seq, size, and_(OF_ACTS, *which), most_bytes=_PAGE_BYTES, most=limit, last=last)
    return numbered(connection, connection.scalars(some))


def of_tenant(connection: Connection, tenant: str) -> Sequence[int]:
    """Return the numbers of the entries about a tenant."""
    query = select(of.seq).where(OF_ACTS, of.tenant == tenant).order_by(of.seq)
    return connection.scalars(query).all()


def erase(connection: Connection, seqs: Sequence[int], event: AuditEvent) -> AuditEntry:
    """Erase the details of entries, and append the event, whose entry lists them; the caller holds the head."""
    for first in range(0, len(seqs), _PAGE):
        these = seqs[first : first + _PAGE]
        connection.execute(delete(chain_names).where(chain_names.c.seq.in_(these)))
        connection.execute(update(chain_links).where(OF_ACTS, of.seq.in_(these)).values(dict.fromkeys(_DETAILS)))
    [entry] = append(connection, [event], erases=seqs)
    return entry


def _read(row: RowMapping) -> AuditEntry:
    details = {name: row[name] for name in _DETAILS}
    erased = all(value is None for value in details.values())
    if not erased:
        details |= {name: links.parsed(details[name]) for name in ("before", "after")}
    return AuditEntry(
        **links.chained(row),
        **{name: row[name] for name in ("uid", "at", "previous")},
        versions=links.parsed(row["versions"]),
        details=None if erased else Details(**details),
    )
