"""Wakes replicas when one of them has written, by PostgreSQL's NOTIFY and LISTEN.

A notice may be lost (a connection that breaks, a pooler between), so replicas poll as well: the poll is what counts.
"""

from collections.abc import AsyncGenerator
from typing import Literal

from sqlalchemy import Connection, text

from prolepsis.core.errors import StoreUnavailable
from prolepsis.store.database import LOCK_WAIT_S, Database

Topic = Literal["controls", "policy", "rollouts", "replicas"]
_CHANNEL = "prolepsis"


def notify(connection: Connection, topic: Topic) -> None:
    """Wake the replicas that listen once the transaction is committed; nothing on SQLite."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_notify(:channel, :topic)"), {"channel": _CHANNEL, "topic": topic})


def can_listen(database: Database) -> bool:
    return database.url.get_backend_name() == "postgresql"


async def notices(database: Database) -> AsyncGenerator[str, None]:
    """Listen on a connection of its own, and yield the topic of each notice; the first, empty, says that it listens.

    Ends, or raises `StoreUnavailable`, when the connection is lost.
    """
    import psycopg

    address = database.url.set(drivername="postgresql").render_as_string(hide_password=False)
    try:
        connection = await psycopg.AsyncConnection.connect(
            address,
            autocommit=True,
            application_name="prolepsis notices",
            connect_timeout=int(LOCK_WAIT_S),
            keepalives_idle=10,  # a dead network is noticed
            keepalives_interval=5,
            keepalives_count=2,
        )
        async with connection:
            await connection.execute(f"LISTEN {_CHANNEL}")
            yield ""
            async for notice in connection.notifies():
                yield notice.payload
    except psycopg.OperationalError as error:
        raise StoreUnavailable(f"store {database.name}: {type(error).__name__}") from error
