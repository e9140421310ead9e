"""Versions of the policy in the store: each is checked, stored and audited in one transaction, or not at all.

All of it waits for the database, so none of it is for an event loop; it raises `StoreUnavailable`.
"""

from dataclasses import dataclass, replace

from prolepsis.audit import chain
from prolepsis.audit.redaction import storable
from prolepsis.core.audit_event import AuditEvent
from prolepsis.core.errors import ConfigError, ProlepsisError, StoreUnavailable
from prolepsis.core.files import Reload
from prolepsis.policy import versions
from prolepsis.policy.check import usable_policy
from prolepsis.policy.model import Policy
from prolepsis.policy.runtime import KNOWN
from prolepsis.policy.versions import NO_VERSION, PolicyText, PolicyVersion
from prolepsis.store.database import Database

NUM_LISTED = 100
Changed = tuple[PolicyVersion, Policy]


@dataclass(frozen=True, slots=True)
class Change:
    """Who wants the policy changed, why, and what they saw in use: another version by now is a conflict."""

    by: str
    reason: str
    expect: int
    """Version that is to be replaced; 0 before the first."""


def apply(database: Database, text: str, change: Change) -> Changed:
    """Store a text as the version in use; replicas take it over within a second.

    Raises `InvalidPolicy` with what is wrong with it, and `StoreConflict` where another version is in use.
    """
    return _put(database, text, usable_policy(text, "policy", KNOWN), change, "policy.applied")


def roll_back(database: Database, to: int, change: Change) -> Changed:
    """Store the text of an earlier version as a new one.

    Raises as `apply` does, and `InvalidParameter` where there is no such version.
    """
    text = version_of(database, to).text
    policy = usable_policy(text, f"version {to}", KNOWN)
    reason = f"rolled back to version {to}{f': {change.reason}' if change.reason else ''}"
    return _put(database, text, policy, replace(change, reason=reason), "policy.rolled_back")


def newest(database: Database) -> list[PolicyVersion]:
    """Return the last `NUM_LISTED` versions, the newest first."""
    with database.read() as connection:
        return versions.history(connection, NUM_LISTED)


def version_of(database: Database, version: int) -> PolicyText:
    """Return one version; raises `InvalidParameter` where there is none."""
    with database.read() as connection:
        return versions.get(connection, version)


def _put(database: Database, text: str, policy: Policy, change: Change, action: str) -> Changed:
    reason = storable(change.reason)
    with database.write() as connection:
        before = versions.current(connection)
        stored = versions.put(connection, text, author=change.by, reason=reason, expect=change.expect)
        event = AuditEvent(
            actor=change.by,
            action=action,
            subject=f"version {stored.version}",
            before=None if before is None else {"version": before.version, "digest": before.digest},
            after={"version": stored.version, "digest": stored.digest, "reason": reason, "content": policy.content()},
            versions={"policy": policy.full_version, "policy_version": str(stored.version)},
        )
        chain.append(connection, [event])
    return stored, policy


NOT_READ = Policy(version="not-read")
"""In use until the store could be read once: nobody knows what may speculate, so nothing does."""


class StoredPolicy:
    """Holds the last good version. `look` waits for the database; what it replaces may be read from any thread."""

    def __init__(self, database: Database) -> None:
        """A store that cannot be read now is read when it can be."""
        self.policy: Policy | None = NOT_READ
        """None: the store has no version yet, so callers decide alone."""
        self.version: int | None = None
        """The one that `policy` is, `NO_VERSION` before the first; None: not known yet."""
        self.fault = ""
        """Why what the store has is not known, or not in use here."""
        self.database = database
        self._refused: int | None = None
        self.look()

    @property
    def name(self) -> str:
        store = f"store {self.database.name}"
        return f"version {self.version} of {store}" if self.version else store

    def look(self) -> Reload:
        """Take over the version in use where it is another one; raises nothing, and one thread at a time may call it.

        Where the store cannot be read, or has a version that cannot be used here, or none any more, the last one stays.
        """
        try:
            found = self._another()
            if found is None:
                return Reload(changed=False)
            version, policy = found
        except ProlepsisError as error:
            already, self.fault = str(error) == self.fault, str(error)
            return Reload(changed=False, refused=None if already else error)
        self.policy, self.version, self.fault = policy, version, ""
        return Reload(changed=True)

    def _another(self) -> tuple[int, Policy | None] | None:
        """Return the version in use with what it says, None where there is nothing new; raises `ProlepsisError`."""
        try:
            version, stored = self._in_use()
        except StoreUnavailable:
            self._refused = None
            raise
        if version in (self.version, self._refused):
            self.fault = "" if version == self.version else self.fault
            return None
        self._refused = version
        if stored is not None:
            return version, usable_policy(stored.text, f"version {version}", KNOWN)
        if self.version:
            message = f"store {self.database.name} has no policy any more; version {self.version} stays"
            raise ConfigError(message, param="store")
        return version, None

    def _in_use(self) -> tuple[int, PolicyText | None]:
        """Return the version in use, with its text unless it is known."""
        if self.database.file is not None and not self.database.file.exists():
            return NO_VERSION, None
        with self.database.read() as connection:
            version = versions.current_version(connection)
            is_known = version in (NO_VERSION, self.version, self._refused)
            return version, None if is_known else versions.get(connection, version)
