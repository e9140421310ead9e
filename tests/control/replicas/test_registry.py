"""The registry of replicas: who shares a store, how each is, and what is known while the store is away."""

from dataclasses import replace

from prometheus_client import CollectorRegistry
from sqlalchemy import Connection
from structlog.testing import capture_logs

from prolepsis.control.replicas.registry import (
    FORGOTTEN_S,
    LOST_S,
    ReplicaRegistry,
    ReplicaReply,
    ReplicaTable,
    Seen,
    address_of,
)
from prolepsis.control.store.database import Database
from prolepsis.control.store.documents import Documents, StoredDocument
from prolepsis.control.store.migrate import migrated_in_memory
from prolepsis.core.config import ServerConfig
from prolepsis.core.engine_client import EngineHealth, EngineMember
from prolepsis.core.errors import StoreUnavailable
from tests.fake_client import INFO, FakeEngineClient, answer


class Store(ReplicaTable):
    """A store on the clock of the replicas, which may be away."""

    def __init__(self, database: Database) -> None:
        self.time = 1000.0
        self.is_away = False
        super().__init__(database, now=self._at)
        self.is_shared = True

    def _at(self, _: Connection) -> float:
        return self.time

    def keep(self, own: ReplicaReply) -> tuple[float, Seen]:
        if self.is_away:
            raise StoreUnavailable("it is away")
        return super().keep(own)


class Server:
    def __init__(self, store: Store, *, port: int = 8000, model: str = "tiny", region: str = "") -> None:
        self.client = FakeEngineClient(answer([[1]]), replace(INFO, model=model, weights=f"w-{model}"))
        self.metrics = CollectorRegistry()
        self.is_draining = False
        self.registry = ReplicaRegistry(
            store,
            self.client,
            ServerConfig(host="10.0.0.7", port=port, region=region),
            self.metrics,
            is_draining=lambda: self.is_draining,
            clock=lambda: store.time,
        )


async def test_each_sees_all_with_their_states_and_groups() -> None:
    store = Store(migrated_in_memory())
    first, second, third = Server(store, region="north"), Server(store, port=8001), Server(store, model="other")
    third.client.reported = EngineHealth(alive=True, ready=False, detail="loading")
    for server in (first, second, third):
        await server.registry.tick()
        store.time += 1.0
    second.is_draining = True
    await second.registry.tick()
    await first.registry.tick()
    shown = first.registry.shown()
    assert (shown.shared, shown.fault) == (True, None)
    assert [(one.here, one.state, one.region, one.seen_s_ago) for one in shown.replicas] == [
        (True, "ready", "north", 0.0),
        (False, "draining", "", 0.0),
        (False, "starting", "", 1.0),
    ]
    assert [one.address for one in shown.replicas][:2] == ["http://10.0.0.7:8000", "http://10.0.0.7:8001"]
    groups = [one.exact_group for one in shown.replicas]
    assert groups[0] == groups[1] != groups[2]
    assert first.registry.num_sharing == 3
    labels = {"exact_group": groups[0], "state": "ready"}
    assert first.metrics.get_sample_value("prolepsis_replicas", labels) == 1.0


async def test_a_killed_replica_is_shown_as_lost_and_a_stopped_one_is_removed() -> None:
    store = Store(migrated_in_memory())
    first, killed, stopped = Server(store), Server(store), Server(store)
    for server in (first, killed, stopped):
        await server.registry.tick()
        store.time += 1.0
    await stopped.registry.close()
    store.time += LOST_S
    await first.registry.tick()
    assert [one.state for one in first.registry.shown().replicas] == ["ready", "lost"]
    assert first.registry.num_sharing == 1
    store.time += FORGOTTEN_S + 1.0
    await first.registry.tick()
    [left] = first.registry.shown().replicas
    assert (left.started_at, left.seen_s_ago) == (1000.0, 0.0), "an old row goes, and a start does not move"


async def test_without_the_store_what_was_seen_last_is_shown_and_counted() -> None:
    store = Store(migrated_in_memory())
    first, second = Server(store), Server(store)
    for server in (second, first):
        await server.registry.tick()
        store.time += 1.0
    store.is_away = True
    store.time += LOST_S
    with capture_logs() as logs:
        await first.registry.tick()
        await first.registry.tick()
    assert [line["event"] for line in logs] == ["store_failed"]
    shown = first.registry.shown()
    assert shown.fault == "it is away"
    assert [(one.here, one.state) for one in shown.replicas] == [(False, "lost"), (True, "ready")]
    assert first.registry.num_sharing == 2
    store.is_away = False
    await first.registry.tick()
    assert first.registry.shown().fault is None


async def test_engines_behind_a_front_door_are_shown_beneath_it() -> None:
    store = Store(migrated_in_memory())
    ours, theirs = Server(store), Server(store)
    engine = EngineMember(
        name="engine-1", exact_group="abc", ready=True, detail="", num_running=3, num_waiting=1, kv_usage=0.5
    )
    theirs.client.reported = replace(theirs.client.reported, members=(engine,))
    await theirs.registry.tick()
    store.time += 1.0
    await ours.registry.tick()
    assert [one.engines for one in ours.registry.shown().replicas] == [(engine,), ()]


async def test_a_row_of_another_version_of_the_software_is_counted_and_left_out() -> None:
    database = migrated_in_memory()
    with database.write() as connection:
        Documents("replica", str, str).put(connection, [StoredDocument("later", '{"described": "otherwise"}', 1000.0)])
    server = Server(Store(database))
    await server.registry.tick()
    assert [one.here for one in server.registry.shown().replicas] == [True]
    assert server.registry.num_sharing == 2


def test_a_server_that_listens_everywhere_is_known_by_its_machine() -> None:
    assert address_of(ServerConfig(host="::1", port=1)) == "http://[::1]:1"
    assert "0.0.0.0" not in address_of(ServerConfig(host="0.0.0.0"))
