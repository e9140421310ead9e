"""Sources of the policy: a file, or the versions in the store. A source keeps the last good policy."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from prolepsis.control.audit import chain
from prolepsis.control.policy import versions
from prolepsis.control.policy.check import NOTHING_KNOWN, Known, usable_policy
from prolepsis.control.policy.model import Policy
from prolepsis.control.policy.versions import NO_VERSION, PolicyText, PolicyVersion
from prolepsis.control.redaction.values import redacted_text
from prolepsis.control.store.database import Database
from prolepsis.core.audit_event import AuditEvent
from prolepsis.core.errors import ConfigError, ProlepsisError, StoreUnavailable
from prolepsis.core.files import LastGood, Reload

NUM_LISTED = 100
NOT_READ = Policy(version="not-read")
"""In use until the store could be read once: it is not known what may speculate, so nothing does."""
SourceKind = Literal["file", "store", "none"]


class PolicyFile(LastGood[Policy]):
    what = "policy"
    kind: SourceKind = "file"

    def __init__(self, path: Path, known: Known = NOTHING_KNOWN) -> None:
        """Raises `ConfigError` if the file has no usable policy."""
        self._known = known
        super().__init__(path)

    @property
    def policy(self) -> Policy:
        return self.value

    @property
    def name(self) -> str:
        return str(self.path)

    def _parse(self, text: str) -> Policy:
        return usable_policy(text, self.name, self._known)

    def _version(self, policy: Policy) -> str:
        return policy.full_version


@dataclass(frozen=True, slots=True)
class PolicyChange:
    """The author of a change, the reason, and the version that the author saw in use."""

    author: str
    reason: str
    expect: int
    """Version that is to be replaced, 0 before the first; if another one is in use by now, the change is a conflict."""


class GivenPolicy:
    """Neither file nor store: one policy that stays as it is. Without it callers decide alone."""

    kind: SourceKind = "none"
    name, fault = "", ""

    def __init__(self, policy: Policy | None = None) -> None:
        self.policy = policy

    def poll(self) -> Reload:
        return Reload(changed=False)


class StoredPolicy:
    """Holds the last good version in the store; replicas on one database follow its newest version.

    All methods wait for the database, so none belongs on an event loop. Attributes may be read from any thread.
    """

    kind: SourceKind = "store"

    def __init__(self, database: Database, known: Known = NOTHING_KNOWN) -> None:
        """A store that cannot be read now is read once that is possible."""
        self.policy: Policy | None = NOT_READ  # None: the store has no version yet, so callers decide alone
        self.version: int | None = None
        """The version of `policy`, `NO_VERSION` before the first; None: not known yet."""
        self.fault = ""  # reason why the version in the store is not known, or not in use here
        self._database = database
        self._known = known
        self._refused: int | None = None
        self._applied: tuple[int, Policy] | None = None
        """The version that was applied here last: it is parsed and checked already."""
        self.poll()

    @property
    def name(self) -> str:
        store = f"store {self._database.name}"
        return f"version {self.version} of {store}" if self.version else store

    def apply(self, text: str, change: PolicyChange) -> tuple[PolicyText, Policy]:
        """Check a text and store it as the version in use; replicas take it over within a second.

        Raises `InvalidPolicy` with all that is wrong, `StoreConflict` if another version is in use, and
        `StoreUnavailable`.
        """
        return self._put(text, usable_policy(text, "policy", self._known), change, "policy.applied")

    def roll_back(self, to: int, change: PolicyChange) -> tuple[PolicyText, Policy]:
        """Store the text of an earlier version as a new one.

        Raises as `apply` does, and `InvalidParameter` if there is no such version.
        """
        text = self.stored(to).text
        policy = usable_policy(text, f"version {to}", self._known)
        reason = f"rolled back to version {to}{f': {change.reason}' if change.reason else ''}"
        return self._put(text, policy, replace(change, reason=reason), "policy.rolled_back")

    def history(self) -> list[PolicyVersion]:
        """Return the last `NUM_LISTED` versions, the newest first; raises `StoreUnavailable`."""
        with self._database.read() as connection:
            return versions.history(connection, NUM_LISTED)

    def stored(self, version: int) -> PolicyText:
        """Return one version; raises `InvalidParameter` if there is none, and `StoreUnavailable`."""
        with self._database.read() as connection:
            return versions.get(connection, version)

    def poll(self) -> Reload:
        """Take over the version in use if it is another one; raises nothing, and one thread at a time may call it.

        The last version stays if the store cannot be read, has lost its versions or has one that is unusable here.
        """
        try:
            newest = self._new_version()
            if newest is None:
                return Reload(changed=False)
            version, policy = newest
        except ProlepsisError as error:
            already, self.fault = str(error) == self.fault, str(error)
            return Reload(changed=False, refused=None if already else error)
        self.policy, self.version, self.fault = policy, version, ""
        return Reload(changed=True)

    def _put(self, text: str, policy: Policy, change: PolicyChange, action: str) -> tuple[PolicyText, Policy]:
        """Store and audit a version in one transaction, or do neither."""
        reason = redacted_text(change.reason)
        with self._database.write(urgent=True) as connection:
            before = versions.current(connection)
            stored = versions.put(connection, text, author=change.author, reason=reason, expect=change.expect)
            after = {"version": stored.version, "digest": stored.digest, "reason": reason, "content": policy.content()}
            event = AuditEvent(
                actor=change.author,
                action=action,
                subject=f"version {stored.version}",
                before=None if before is None else {"version": before.version, "digest": before.digest},
                after=after,
                versions={"policy": policy.full_version, "policy_version": str(stored.version)},
            )
            chain.append(connection, [event])
        self._applied = (stored.version, policy)
        return stored, policy

    def _new_version(self) -> tuple[int, Policy | None] | None:
        """Return the version in use with its policy, None if it is not new; raises `ProlepsisError`."""
        try:
            version, stored = self._in_use()
        except StoreUnavailable:
            self._refused = None
            raise
        if version in (self.version, self._refused):
            self.fault = "" if version == self.version else self.fault
            return None
        self._refused = version
        if self._applied is not None and self._applied[0] == version:
            return self._applied
        if stored is not None:
            return version, usable_policy(stored.text, f"version {version}", self._known)
        if self.version:
            message = f"store {self._database.name} has no policy any longer; version {self.version} stays in use"
            raise ConfigError(message, param="store")
        return version, None

    def _in_use(self) -> tuple[int, PolicyText | None]:
        """Return the version in use, with its text unless that is known."""
        if self._database.file is not None and not self._database.file.exists():
            return NO_VERSION, None
        with self._database.read() as connection:
            version = versions.current_version(connection)
            known = (NO_VERSION, self.version, self._refused, self._applied[0] if self._applied else None)
            return version, None if version in known else versions.get(connection, version)


PolicySource = PolicyFile | StoredPolicy | GivenPolicy
"""Each has the last good policy, its name in messages, the fault of its present content, and `poll` to follow it."""
