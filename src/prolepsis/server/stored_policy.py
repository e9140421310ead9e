"""The policy in use, as the store has it: replicas on one database follow its newest version."""

from prolepsis.control.last_good import Reload
from prolepsis.control.policy import Policy
from prolepsis.control.usable import usable_policy
from prolepsis.core.errors import ConfigError, ProlepsisError, StoreUnavailable
from prolepsis.server.policies import KNOWN
from prolepsis.store import plans
from prolepsis.store.database import Database
from prolepsis.store.plans import NO_PLAN, PlanVersion

NOT_READ = Policy(version="not-read")
"""In use until the store could be read once: nobody knows what may speculate, so nothing does."""


class StoredPolicy:
    """Holds the last good version. `look` waits for the database; what it replaces may be read from any thread."""

    def __init__(self, database: Database) -> None:
        """A store that cannot be read now is read when it can be."""
        self.policy: Policy | None = NOT_READ
        """None: the store has no version yet, so callers decide alone."""
        self.version: int | None = None
        """The one that `policy` is, `NO_PLAN` before the first; None: not known yet."""
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

    def _in_use(self) -> tuple[int, PlanVersion | None]:
        """Return the version in use, with its text unless it is known."""
        if self.database.file is not None and not self.database.file.exists():
            return NO_PLAN, None
        with self.database.read() as connection:
            version = plans.current_version(connection)
            is_known = version in (NO_PLAN, self.version, self._refused)
            return version, None if is_known else plans.get(connection, version)
