"""Acts of commands on this machine, recorded in the audit log of the configured store."""

import os
from getpass import getuser

from prolepsis.core.audit_event import AuditEvent
from prolepsis.core.errors import ConfigError, ProlepsisError
from prolepsis.core.terminal.flags import settings_here
from prolepsis.core.terminal.output import warn


def user() -> str:
    """Return the name of the user who runs the command."""
    try:
        return getuser()
    except (KeyError, OSError):  # a container may run as a user without a name
        return f"user {os.getuid()}"


def actor() -> str:
    """Return the user as the audit log names the command line."""
    return f"command line, {user()}"


def record_act(event: AuditEvent, *, store: str | None = None) -> None:
    """Record an act that has happened; a log that cannot be written is a warning, as the act stands.

    Without the audit key the act waits in the store for a server. Without a store nothing is recorded: a server records
    at its start what it finds.
    """
    from prolepsis.control.audit import chain, waiting
    from prolepsis.control.store.database import Database, store_url
    from prolepsis.control.store.migrate import NEWEST, revision
    from prolepsis.control.store.signing import found_keys

    try:
        config = settings_here(store=store).server
        url, keys = store_url(config.store), found_keys(config)
        database = Database(url, options=keys.options) if url is not None else None
        schema = revision(database) if database is not None else None
        if database is None or schema is None:
            return
        if schema != NEWEST:
            raise ConfigError(f"store {database.name} has the older schema {schema}", param="store")
        with database.write() as connection:
            fault = waiting.signing_fault(connection, keys)
            if fault:
                waiting.leave(connection, event)
            else:
                chain.append(connection, [event])
        if fault:
            warn(f"{event.action} waits in the store until a server signs it into the audit log: {fault}")
    except ProlepsisError as error:
        warn(f"{event.action} is not in the audit log: {error}")
