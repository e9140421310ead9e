"""What holds for every test: one core for each worker, files of its own, and databases with the schema."""

import gc
import os
import shutil
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
import structlog
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:  # a run of a few tests imports what they need
    from prolepsis.control.store.database import Database
    from prolepsis.control.store.store import Store
    from prolepsis.engine.models.load import LoadedModel

DEFAULT_MODEL = "test_default_model"
SHARED_MODELS = (DEFAULT_MODEL, "test_coder_model")
"""Files whose names begin with one of them share a model, which one worker loads once."""

AUTHORITY = Path(__file__).with_name("authority.pem")
"""The only authority whose certificates clients take: to read the system's would take 30 ms for each client."""

MEMORY = Path("/dev/shm")
"""Where Linux has files in memory."""


def has_room(folder: Path) -> bool:
    """Whether the files of all tests, programs too, can lie in a folder."""
    if not folder.is_dir() or os.statvfs(folder).f_flag & os.ST_NOEXEC:
        return False
    return shutil.disk_usage(folder).free > 4 << 30


for profile, number in (("quick", 25), ("night", 300)):  # no test is timed
    settings.register_profile(profile, deadline=None, max_examples=number, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("quick")  # `make night` names the other
gc.disable()  # until all tests are imported: each full collection takes longer than the one before, and finds nothing
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # each process that a test starts would compile the package again
if "TMPDIR" not in os.environ and has_room(MEMORY):  # a transaction waits 7 ms for a disk
    os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)
if "PYTEST_XDIST_WORKER" in os.environ:  # workers share the cores: set before torch is imported
    os.environ["OMP_NUM_THREADS"] = "1"


class ByFile(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """The tests of a file run in one worker, and so do all those of a model that files share."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return next((name for name in SHARED_MODELS if name in path), path)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByFile:
    return ByFile(config, log)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Give each operation of a schemathesis test an id of its own: pytest 9.2 builds it without the operation."""
    if (operation := getattr(item, "operation_label", None)) is not None and item.id.params is None:
        item._id = item.id.with_params(operation)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Start with the default model: the slowest tests, which would keep one worker busy at the end."""
    if config.getoption("--hypothesis-profile") != "night":
        skip_night = pytest.mark.skip(reason="takes long and seldom finds something: make night")
        for item in items:
            if item.get_closest_marker("night"):
                item.add_marker(skip_night)
    items.sort(key=lambda item: DEFAULT_MODEL not in item.nodeid)
    same = [name for name, count in Counter(item.nodeid for item in items).items() if count > 1]
    assert not same, f"of tests with the same id, parallel runs leave out all but one: {same}"


def pytest_collection_finish() -> None:
    if "fastapi" in sys.modules:
        from tests.shared_routes import share

        share()
    gc.freeze()  # a collection need not look at all that was imported
    gc.set_threshold(10_000, 10, 50)  # applications come and go with each test
    gc.enable()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say what the suite took beside its budget; a machine that others use takes longer."""
    if not config.option.file_or_dir:
        seconds = tomllib.loads((config.rootpath / "budgets.toml").read_text())["seconds"]["suite"]
        took = time.time() - terminalreporter._session_start.time
        terminalreporter.write_line(f"the suite took {took:.0f} s; its budget on two quiet cores is {seconds} s")


@pytest.fixture(scope="session", autouse=True)
def own_data_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Servers of a module, in processes of their own too, keep store and keys out of the user's directories."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PROLEPSIS_DATA", str(tmp_path_factory.mktemp("data")))
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        patch.setenv("SSL_CERT_FILE", str(AUTHORITY))
        yield


@pytest.fixture(autouse=True)
def own_data() -> Iterator[None]:
    """Each test begins without what another left in the data directory, such as scopes that are stopped."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PROLEPSIS_DATA", str(Path(os.environ["PROLEPSIS_DATA"]) / uuid4().hex))
        yield


@pytest.fixture(autouse=True)
def own_logs() -> Iterator[None]:
    """What a test or a command in it sets of the log ends with the test."""
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="session")
def loaded() -> "LoadedModel":
    """The default model; skips where it is not on this machine."""
    from prolepsis.core.errors import ModelError
    from prolepsis.engine.models.load import load_model
    from tests.default_model import CONFIG

    try:
        return load_model(CONFIG)
    except ModelError as error:
        pytest.skip(f"the default model is not here: {error}")


@pytest.fixture(scope="session")
def coder() -> "LoadedModel":
    """The coder model, for tests that are skipped where no variable names its file (`tests.coder_model`)."""
    from prolepsis.engine.models.load import load_model
    from tests.coder_model import CONFIG

    return load_model(CONFIG)


@pytest.fixture(scope="session")
def strict(loaded: "LoadedModel") -> bool:
    """Whether speculation with the default model is to equal plain decoding to the bit, by the engine's self-check."""
    from prolepsis.engine.exactness import decide

    return decide(loaded.model, "auto").mode == "strict"


@pytest.fixture(scope="session")
def tiny_family(tmp_path_factory: pytest.TempPathFactory) -> "Callable[[str, str], Path]":
    """Return the GGUF file of a random model by the names of its vocabulary and its chat template, made once a session.

    The names: `OWN` and `TEMPLATES` of `tests.engine.models.families`, or those of published models, else the test is
    skipped.
    """
    from tests.engine.models.families import write_named

    folder = tmp_path_factory.mktemp("families")

    @cache
    def made(vocabulary: str, template: str) -> Path:
        return write_named(folder / f"{vocabulary}-{template}.gguf", vocabulary, template)

    return made


@pytest.fixture
def sqlite(tmp_path: Path) -> str:
    """The `store` setting of a file of SQLite with the schema and nothing in it."""
    from tests.control.store.databases import migrated_setting

    return migrated_setting(tmp_path)


@pytest.fixture
def store(sqlite: str) -> Iterator["Store"]:
    """An open store in a file of SQLite, with nothing in it."""
    from prolepsis.control.store.store import open_store
    from prolepsis.core.telemetry.metrics import Metrics

    with closing(open_store(sqlite, Metrics().registry)) as opened:
        yield opened


@pytest.fixture
def sqlite_database(sqlite: str) -> Iterator["Database"]:
    """The same, opened: for what is the same on PostgreSQL."""
    from tests.control.store.databases import opened

    with closing(opened(sqlite)) as made:
        yield made


@pytest.fixture(scope="session")
def migrated_postgresql() -> Iterator[str]:
    """The `store` setting of a database of PostgreSQL with the schema, for all tests that leave it unharmed."""
    from prolepsis.control.store.migrate import upgrade
    from tests.control.store.databases import opened, postgresql_setting

    with postgresql_setting() as setting:
        with closing(opened(setting)) as database:
            upgrade(database)
        yield setting


@pytest.fixture
def postgresql(migrated_postgresql: str) -> str:
    """The `store` setting of a database of PostgreSQL with the schema and nothing in it."""
    from tests.control.store.databases import emptied

    emptied(migrated_postgresql)
    return migrated_postgresql


@pytest.fixture(params=["sqlite", "postgresql"])
def setting(request: pytest.FixtureRequest) -> str:
    """The `store` setting of a database of either kind with the schema and nothing in it."""
    return str(request.getfixturevalue(request.param))


@pytest.fixture
def connect(setting: str) -> Iterator[Callable[[], "Database"]]:
    """Each call is another process's view of one database."""
    from tests.control.store.databases import opened

    made: list[Database] = []

    def another() -> "Database":
        made.append(opened(setting))
        return made[-1]

    yield another
    for database in made:
        database.close()


@pytest.fixture
def database(connect: Callable[[], "Database"]) -> "Database":
    return connect()
