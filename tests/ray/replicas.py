"""Replicas on one event loop, and what front doors have of them: Ray Serve's handle, and connections."""

import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from prolepsis.core.requests import GenerateRequest
from prolepsis.engine.observer import EngineObserver
from prolepsis.engine.thread import ThreadEngineClient
from prolepsis.ray.client import ReplicasClient
from prolepsis.ray.messages import Report
from prolepsis.ray.replica import EngineReplica, Notes
from tests.fakes import EngineSetup, build


def replica(clock: Callable[[], float] = time.monotonic, **info: str) -> EngineReplica:
    """Return a replica whose engine runs the table model; `info` is what it says of itself."""
    notes = Notes()
    engine = build(EngineSetup(max_model_len=1024, observer=notes))
    engine.info = replace(engine.info, **info)  # type: ignore[arg-type]
    return EngineReplica(ThreadEngineClient(engine), notes, clock)


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
        await self.replicas[number].listener.close()

    async def close(self) -> None:
        for one in self.replicas:
            await one.close()


@asynccontextmanager
async def front_door(
    handle: TurnsHandle, observer: EngineObserver | None = None, *, gone: Sequence[int] = ()
) -> AsyncIterator[ReplicasClient]:
    """Return a client with connections to all replicas but those that are `gone` since they reported."""
    reports = [reply for reply in await handle.broadcast("report") if isinstance(reply, Report)]
    for number in gone:
        await handle.lose(number)
    client = ReplicasClient(handle, reports, observer, router=handle)
    await client.connected()
    yield client
    await client.close()
