"""Versions of the policy in the store: each is checked, stored and audited in one transaction, or not at all.

All of it waits for the database, so none of it is for an event loop; it raises `StoreUnavailable`.
"""

from dataclasses import dataclass, replace

from prolepsis.control.policy import Policy
from prolepsis.control.usable import usable_policy
from prolepsis.server.policies import KNOWN
from prolepsis.store import plans
from prolepsis.store.audit import chain
from prolepsis.store.audit.entry import Act
from prolepsis.store.audit.redaction import storable
from prolepsis.store.database import Database
from prolepsis.store.plans import PlanVersion

NUM_LISTED = 100
Changed = tuple[PlanVersion, Policy]


@dataclass(frozen=True, slots=True)
class Change:
    """Who wants the policy changed, why, and what they saw in use: another version by now is a conflict."""

    by: str
    reason: str
    over: int
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


def newest(database: Database) -> list[PlanVersion]:
    """Return the last `NUM_LISTED` versions, the newest first."""
    with database.read() as connection:
        return plans.history(connection, NUM_LISTED)


def version_of(database: Database, version: int) -> PlanVersion:
    """Return one version; raises `InvalidParameter` where there is none."""
    with database.read() as connection:
        return plans.get(connection, version)


def _put(database: Database, text: str, policy: Policy, change: Change, action: str) -> Changed:
    reason = storable(change.reason)
    with database.write() as connection:
        before = plans.current(connection)
        stored = plans.put(connection, text, author=change.by, note=reason, over=change.over)
        act = Act(
            actor=change.by,
            action=action,
            subject=f"version {stored.version}",
            before=None if before is None else {"version": before.version, "digest": before.digest},
            after={"version": stored.version, "digest": stored.digest, "reason": reason, "content": policy.content()},
            versions={"policy": policy.full_version, "plan": str(stored.version)},
        )
        chain.append(connection, [act])
    return stored, policy
