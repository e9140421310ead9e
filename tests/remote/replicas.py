"""Replicas on one event loop, and what front ends have of them: a directory, and connections."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from prolepsis.adapters.ray.hosts import RayHosts
from prolepsis.adapters.ray.replica import EngineReplica
from prolepsis.core.engine_client import Demand, EngineClient
from prolepsis.core.figures import EngineObserver
from prolepsis.core.requests import GenerateRequest
from prolepsis.engine.thread import ThreadEngineClient
from prolepsis.remote.engines import Engines
from prolepsis.remote.host import KeptFigures
from prolepsis.remote.members import FailoverSettings
from tests.fakes import EngineSetup, build


def replica(**info: str) -> EngineReplica:
    """Return a replica whose engine runs the table model; `info` is what it says of itself."""
    figures = KeptFigures()
    engine = build(EngineSetup(max_model_len=1024, observer=figures))
    engine.info = replace(engine.info, **info)  # type: ignore[arg-type]
    return EngineReplica(ThreadEngineClient(engine), figures)


def replica_of(client: EngineClient) -> EngineReplica:
    return EngineReplica(client, KeptFigures())


@dataclass(slots=True)
class TurnsHandle:
    """A `Handle`, and a `Router` that asks one replica after the other."""

    replicas: list[EngineReplica]
    lost: set[str] = field(default_factory=set)
    """Names of replicas that are gone."""
    num_streams: int = 0

    async def broadcast(self, method: str, *arguments: object, timeout_s: float = 60.0) -> Sequence[object]:
        replies: list[object] = []
        for one in list(self.replicas):
            gone = one.name in self.lost
            replies.append(RuntimeError("it is gone") if gone else await getattr(one, method)(*arguments))
        return replies

    def ranked(self, request: GenerateRequest, loads: Mapping[str, int]) -> Sequence[str]:
        names = [one.name for one in self.replicas if one.name in loads]
        first = self.num_streams % len(names)
        return names[first:] + names[:first]

    def sent(self, request: GenerateRequest, replica: str) -> None:
        self.num_streams += 1

    async def lose(self, number: int) -> None:
        """End a replica's connections; it takes no new ones."""
        self.lost.add(self.replicas[number].name)
        await self.replicas[number].end_connections()

    async def close(self) -> None:
        for one in self.replicas:
            await one.close()


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what another task does."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


@asynccontextmanager
async def front_end(
    handle: TurnsHandle, observer: EngineObserver | None = None, *, demand: Callable[[], Demand] | None = None
) -> AsyncIterator[Engines]:
    """Yield a client once it has connections to all replicas."""
    hosts = RayHosts(handle, observer)
    if demand is not None:
        hosts.follow(demand)
    settings = FailoverSettings(max_losses=10, max_restarts=1000, check_s=0.01, backoff_s=0.01, list_s=0.01)
    info = handle.replicas[0].host.client.info
    client = Engines((), settings=settings, directory=hosts, info=info, router=handle)
    await connected(client, len(handle.replicas))
    yield client
    await client.close()


async def connected(client: Engines, number: int) -> None:
    """Wait until it has connections to so many replicas."""
    await until(lambda: sum(member.ready for member in client.health().members) == number)
