"""Changes of the last day, found in the audit log: possible causes of what is seen now."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice

from prolepsis.control.audit import chain
from prolepsis.control.audit.entry import AuditEntry
from prolepsis.control.audit.summary import changed_fields, reason_of, version_words
from prolepsis.control.store.database import Database
from prolepsis.core.audit_event import SERVER

WINDOW_S = 86_400.0
MAX_CHANGES = 200
AREAS = frozenset({"flags", "head", "kill", "policy", "prices", "rollout", "server"})
"""Actions of these areas can make drafts better or worse, or requests slower or more expensive."""
_BY_PEOPLE = frozenset({"breaker", "drift"})
"""Areas in which the server acts by itself too, which is an effect and no cause."""
_NO_CHANGE = frozenset({"flags.loaded", "policy.loaded", "prices.loaded", "head.tried"})
"""At a start or after a swap, which have entries of their own."""
_NUM_TOLD = 2
_FOLLOWED_S = 5.0  # servers follow the controls file within a second


@dataclass(frozen=True, slots=True)
class AuditChange:
    """An entry of the audit log in one line."""

    seq: int
    at: str  # UTC, ISO 8601
    action: str
    actor: str
    subject: str
    what: str  # the fields that changed, in few words
    reason: str


@dataclass(frozen=True, slots=True)
class ChangesReply:
    since: str
    changes: list[AuditChange]  # the newest first; `MAX_CHANGES` at most


NO_CHANGES = ChangesReply("", [])


class RecentChanges:
    """Reads each entry of the log once, as times have no index there; any thread may call it."""

    def __init__(self, database: Database, now: Callable[[], float] = time.time) -> None:
        """`now` is Unix time."""
        self._database = database
        self._now = now
        self._seen: int | None = None
        self._numbers: deque[int] = deque(maxlen=MAX_CHANGES)
        self._lock = threading.Lock()

    def read(self) -> ChangesReply:
        """Return the changes of the last day; raises `StoreUnavailable`."""
        since = datetime.fromtimestamp(self._now() - WINDOW_S, UTC)
        with self._lock, self._database.read() as connection:
            after = chain.last_before(connection, since) if self._seen is None else self._seen
            last, _ = chain.head(connection)
            acts = chain.acts(connection, after, last)
            self._numbers.extend(seq for seq, action, actor in acts if is_change(action, actor))
            self._seen = last
            entries = chain.numbered(connection, self._numbers)
        recent = [entry for entry in entries if datetime.fromisoformat(entry.at) >= since]
        changes = [change_of(entry) for entry in without_repeats(recent)]
        return ChangesReply(since.isoformat(timespec="seconds"), changes[::-1])


def is_change(action: str, actor: str | None) -> bool:
    """Return whether an entry is one of a change; the actor of an erased entry is None."""
    area = action.partition(".")[0]
    return (area in AREAS and action not in _NO_CHANGE) or (area in _BY_PEOPLE and actor != SERVER)


def change_of(entry: AuditEntry) -> AuditChange:
    """Return an entry in one line, whose details may be erased."""
    details = entry.details
    if details is None:
        return AuditChange(entry.seq, entry.at, entry.action, "erased", "", "", "")
    reason = reason_of(details.before, details.after)
    if entry.action.startswith("server."):
        words: Iterable[str] = version_words(entry.versions)
    else:
        fields = changed_fields(details.before, details.after)  # without what another column says, and digests
        words = (word for word in fields if word != details.subject and not word.startswith(("reason ", "digest ")))
    what = ", ".join(islice(words, _NUM_TOLD))
    return AuditChange(entry.seq, entry.at, entry.action, details.actor, details.subject, what, reason)


def without_repeats(entries: Sequence[AuditEntry]) -> Iterator[AuditEntry]:
    """Leave out what another entry says too.

    That is a version of the policy that replicas took over from the one that applied it, and a command that wrote the
    controls file, where a server's entry says what that changed.
    """
    applied: set[str] = set()
    followed = [(_file_of(row), _seconds(row)) for row in entries if _is_followed(row)]
    for entry in entries:
        near = [file for file, at in followed if abs(at - _seconds(entry)) < _FOLLOWED_S]
        if not _is_followed(entry) and _file_of(entry) in near:
            continue
        version = entry.versions.get("policy", "")
        if entry.action == "policy.reloaded" and version in applied:
            continue
        if entry.action.startswith("policy."):
            applied.add(version)
        yield entry


def _is_followed(entry: AuditEntry) -> bool:
    """Return whether an entry says that a server followed its controls file: it has the whole state of the switch."""
    details = entry.details
    if details is None or not details.subject or not entry.action.startswith("kill."):
        return False
    return isinstance(details.after, Mapping) and "killed" in details.after


def _file_of(entry: AuditEntry) -> tuple[str, str]:
    return entry.action, entry.details.subject if entry.details else ""


def _seconds(entry: AuditEntry) -> float:
    return datetime.fromisoformat(entry.at).timestamp()
