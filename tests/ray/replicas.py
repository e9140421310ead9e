"""Replicas on one event loop, and a handle that asks them in turn, as Ray Serve's would from far away."""

import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace

from prolepsis.core.errors import ReplicaLost
from prolepsis.core.events import Event
from prolepsis.core.requests import GenerateRequest
from prolepsis.engine.process.messages import Refused
from prolepsis.engine.thread import ThreadEngineClient
from prolepsis.ray.messages import Began, ControlState
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
    """A `Handle` that asks one replica after the other."""

    replicas: list[EngineReplica]
    lost: set[str] = field(default_factory=set)
    """Names of replicas that are gone."""
    num_streams: int = 0

    def stream(self, request: GenerateRequest, controls: ControlState) -> "TurnsResponses":
        there = [one for one in self.replicas if one.name not in self.lost]
        chosen = there[self.num_streams % len(there)]
        self.num_streams += 1
        return TurnsResponses(self, chosen, request, controls)

    async def broadcast(self, method: str, *arguments: object, timeout_s: float = 60.0) -> Sequence[object]:
        replies: list[object] = []
        for one in list(self.replicas):
            gone = one.name in self.lost
            replies.append(RuntimeError("it is gone") if gone else await getattr(one, method)(*arguments))
        return replies

    async def close(self) -> None:
        for one in self.replicas:
            await one.close()


@dataclass(slots=True)
class TurnsResponses:
    handle: TurnsHandle
    replica: EngineReplica
    request: GenerateRequest
    controls: ControlState
    cancelled: bool = False

    async def __aiter__(self) -> AsyncIterator[Began | Event | Refused]:
        async for event in self.replica.generate(self.request, self.controls):
            if self.replica.name in self.handle.lost:
                raise ReplicaLost(f"{self.replica.name} is gone")
            yield event

    def cancel(self) -> None:
        self.cancelled = True
