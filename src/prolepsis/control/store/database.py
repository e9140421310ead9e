"""One database, SQLite or PostgreSQL: the setting that names it, its transactions and its errors."""

import os
import sqlite3
import threading
import time
from bisect import insort
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, NullPool, QueuePool, Table, create_engine, event, func, make_url, select
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from prolepsis.core.errors import ConfigError, StoreUnavailable
from prolepsis.core.extras import POSTGRES
from prolepsis.core.files import data_directory

if TYPE_CHECKING:
    from sqlalchemy.dialects import postgresql, sqlite

AUTO = "auto"
NONE = "none"
ALLOWED = "allowed: auto (SQLite in the user's data directory), none, sqlite:///FILE, postgresql://USER@HOST/DATABASE"
FILE_NAME = "store.sqlite"


def store_url(setting: str) -> URL | None:
    """Return the database of a `store` setting, None for none; raises `ConfigError` with the allowed ones."""
    if setting == NONE:
        return None
    if setting == AUTO:
        return URL.create("sqlite", database=str(data_directory() / FILE_NAME))
    try:
        url = make_url(setting)
    except ArgumentError:
        raise ConfigError(f"store is not a database URL; {ALLOWED}", param="store") from None
    if url.drivername == "sqlite" and url.database and url.database != ":memory:" and not url.query:
        return url
    if url.drivername == "postgresql":
        return url.set(drivername="postgresql+psycopg")
    raise ConfigError(f"store is {url.render_as_string(hide_password=True)!r}; {ALLOWED}", param="store")


LOCK_WAIT_S = 5.0
_PAUSE_S = 0.005
_STATEMENT_S = 30.0
_WRITES = "prolepsis_writes"


Failing = Mapping[Literal["read", "write"], str]


class Database:
    """Opens a connection when one is needed; safe to share between threads."""

    def __init__(self, url: URL, *, options: Mapping[str, object] | None = None, content: bytes = b"") -> None:
        """Nothing is opened yet. Raises `ConfigError` if the PostgreSQL driver is not installed.

        `options`: execution options of the connections, for code that gets the connection only. `content`: what
        SQLite in memory begins with, as `serialized` returns it.
        """
        is_sqlite = url.get_backend_name() == "sqlite"
        self.file = Path(url.database) if is_sqlite and url.database else None
        """The file of SQLite; None: PostgreSQL, or SQLite in memory."""
        self.is_kept = self.file is not None or not is_sqlite
        """It outlives this process, and other processes may share it."""
        self.name = url.render_as_string(hide_password=True)
        self.url = url
        self.failing: Failing = {}
        """Why transactions of a kind fail, while a drill has them fail."""
        in_memory = partial(_sqlite_in_memory, content)
        self._engine = (_sqlite(self.file) if self.file else in_memory()) if is_sqlite else _postgresql(url)
        self._engine = self._engine.execution_options(**(options or {}))
        self._writing = self._engine.execution_options(**{_WRITES: True})
        self._reading = self._engine if is_sqlite else self._engine.execution_options(isolation_level="REPEATABLE READ")
        self._turns = WriteTurns(self.name) if is_sqlite else None

    @contextmanager
    def write(self, *, urgent: bool = False) -> Iterator[Connection]:
        """Hold one transaction that may write: all of it is on disk when the block has been left, or none of it.

        SQLite has one writer at a time, and waits for it: those of this process in turn, `urgent` ones first. Raises
        `StoreUnavailable`.
        """
        turn = self._turns.turn(urgent=urgent) if self._turns else nullcontext()
        with _failures(self.name, self.failing.get("write")), turn, self._writing.begin() as connection:
            yield connection

    def give_way(self) -> None:
        """Wait between two of many small transactions, so that other processes find SQLite unlocked."""
        if self._turns:
            time.sleep(_PAUSE_S)

    def repeat(self, work: Callable[[Connection], int]) -> int:
        """Call `work` in one small transaction after another until it changes no row; return how many it changed."""
        total = 0
        while True:
            with self.write() as connection:
                number = work(connection)
            if not number:
                return total
            total += number
            self.give_way()

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Hold one transaction that reads and sees one state of the database; raises `StoreUnavailable`."""
        with _failures(self.name, self.failing.get("read")), self._reading.begin() as connection:
            yield connection

    def make_file(self) -> None:
        """Create a missing SQLite file, readable by its owner only; raises `StoreUnavailable`."""
        if self.file is None or self.file.exists():
            return
        try:
            self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(self.file, os.O_CREAT | os.O_RDWR, 0o600))
        except OSError as error:
            raise StoreUnavailable(f"store {self.name}: {error.strerror}") from error

    def close(self) -> None:
        self._engine.dispose()

    def serialized(self) -> bytes:
        with self.read() as connection:
            held = connection.connection.driver_connection
            assert isinstance(held, sqlite3.Connection), "asked of SQLite only"
            return held.serialize()


class WriteTurns:
    """Lets the writers of a process have their turn one after another, urgent ones before all others."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._changed = threading.Condition()
        self._numbers = count()
        self._waiting: list[tuple[bool, int]] = []
        """The first one holds the turn, or has it next."""
        self._is_held = False

    @contextmanager
    def turn(self, *, urgent: bool = False) -> Iterator[None]:
        """Hold the turn; raises `StoreUnavailable` where it does not come in `LOCK_WAIT_S`."""
        with self._changed:
            own = not urgent, next(self._numbers)
            insort(self._waiting, own)
            came = self._changed.wait_for(lambda: not self._is_held and self._waiting[0] == own, LOCK_WAIT_S)
            self._waiting.remove(own)
            if not came:
                self._changed.notify_all()
                raise StoreUnavailable(f"store {self._name}: other writers of this process come first")
            self._is_held = True
        try:
            yield
        finally:
            with self._changed:
                self._is_held = False
                self._changed.notify_all()


def in_memory(content: bytes = b"") -> Database:
    """Return a SQLite database that ends with this process; `content` as `Database` takes it."""
    return Database(URL.create("sqlite"), content=content)


def database_time(connection: Connection) -> float:
    """Return the time in seconds of Unix time by a clock that all replicas share: PostgreSQL's, or their machine's."""
    if connection.dialect.name == "postgresql":
        return float(connection.execute(select(func.extract("epoch", func.clock_timestamp()))).scalar_one())
    return time.time()


class StoreTable:
    """Each call waits for the database and may raise `StoreUnavailable`; none belongs on an event loop."""

    def __init__(self, database: Database, *, now: Callable[[Connection], float] = database_time) -> None:
        self._database, self._now = database, now
        self.is_shared = database.is_kept
        """Whether other servers may be in it."""


def insert_or_update(connection: Connection, table: Table) -> "postgresql.Insert | sqlite.Insert":
    """Return an insert that may say what happens to rows that exist (`on_conflict_do_update`)."""
    if connection.dialect.name == "postgresql":
        from sqlalchemy.dialects import postgresql  # a tenth of a second, which a start on SQLite does not need

        return postgresql.insert(table)
    from sqlalchemy.dialects import sqlite

    return sqlite.insert(table)


def hold(connection: Connection, *names: str) -> None:
    """Let the transactions that hold one of these names run one after another: what one counts, it may then take."""
    if connection.dialect.name == "postgresql":  # SQLite's writers are alone anyway
        for name in sorted(names):
            connection.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(name, 0))))


@contextmanager
def _failures(name: str, planted: str | None) -> Iterator[None]:
    """Name the database and what its driver says; never the statement, whose values are not for logs."""
    if planted is not None:
        raise StoreUnavailable(f"store {name}: {planted}")
    try:
        yield
    except (IntegrityError, DataError):  # the fault of the item
        raise
    except DBAPIError as error:
        lines = str(error.orig).strip().splitlines() or [type(error.orig).__name__]
        raise StoreUnavailable(f"store {name}: {lines[0]}") from error
    except PoolTimeout as error:
        raise StoreUnavailable(f"store {name}: all connections are in use") from error


def _sqlite(file: Path) -> Engine:
    """One connection per transaction, so that a moved or replaced file is noticed."""

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(
            f"file:{quote(str(file))}?mode=rw",  # a missing file is not created here
            uri=True,
            timeout=LOCK_WAIT_S,
            isolation_level=None,  # transactions begin below, not in the driver
            check_same_thread=False,
        )
        try:
            _use_write_ahead_log(connection)
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute("PRAGMA secure_delete=ON")  # erased data is overwritten
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    return _beginning(create_engine("sqlite://", creator=connect, poolclass=NullPool, hide_parameters=True))


def _use_write_ahead_log(connection: sqlite3.Connection) -> None:
    """Wait for others who switch the same new file: of two, SQLite refuses one at once, with any `timeout`."""
    end = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > end:
                raise
            time.sleep(0.01)


def _sqlite_in_memory(content: bytes) -> Engine:
    """One connection, which transactions use in turn: the database ends with it."""

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        if content:
            connection.deserialize(content)
        return connection

    pool = {"poolclass": QueuePool, "pool_size": 1, "max_overflow": 0, "pool_timeout": LOCK_WAIT_S}
    return _beginning(create_engine("sqlite://", creator=connect, hide_parameters=True, **pool))


def _beginning(engine: Engine) -> Engine:
    """Begin transactions explicitly: a transaction that may write takes the lock at once."""

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        writes = connection.get_execution_options().get(_WRITES)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _postgresql(url: URL) -> Engine:
    """Connections with time limits for connecting, statements, locks and a dead network."""
    POSTGRES.require("a store on PostgreSQL", param="store")
    bounds = {
        "application_name": "prolepsis",
        "connect_timeout": int(LOCK_WAIT_S),
        "tcp_user_timeout": int(1000 * _STATEMENT_S),
        "options": f"-c lock_timeout={int(1000 * LOCK_WAIT_S)} -c statement_timeout={int(1000 * _STATEMENT_S)}",
    }
    return create_engine(url, connect_args=bounds, pool_pre_ping=True, pool_size=4, hide_parameters=True)
