"""The replica's side of the connections on which front doors ask it."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import structlog

from prolepsis.core.messages import Abort, OfferDraft
from prolepsis.engine.process.channel import Channel, Streams
from prolepsis.engine.process.messages import Generate, Leave
from prolepsis.engine.process.streams import ServedStreams
from prolepsis.ray.connection import listen, new_secret
from prolepsis.ray.messages import Address, Beat, ControlState, Figures, Leaving

if TYPE_CHECKING:
    from prolepsis.ray.replica import EngineReplica

BEAT_S = 0.5
"""Seconds between two signs of life."""

log = structlog.get_logger(__name__)


class Listener:
    """Takes requests of front doors for one replica. Belongs to the event loop on which it is first asked."""

    def __init__(self, replica: "EngineReplica", host: str) -> None:
        self._replica = replica
        self._host = host
        self._starting = asyncio.Lock()
        self._server: asyncio.Server | None = None
        self._address: Address | None = None
        self._doors: set[_Door] = set()
        self._beating: asyncio.Task[None] | None = None
        self._ended = asyncio.Event()
        self._is_draining = False

    async def address(self) -> Address:
        """Return where it listens, and begin to."""
        async with self._starting:
            if self._address is None:
                self._server, self._address = await listen(self._host, new_secret(), self._serve)
                self._beating = asyncio.create_task(self._beat())
            return self._address

    @property
    def num_streams(self) -> int:
        """Requests of all front doors."""
        return sum(len(door.streams) for door in self._doors)

    @property
    def num_doors(self) -> int:
        return len(self._doors)

    async def drain(self) -> None:
        """Have front doors choose others, and return when no request is left."""
        self._is_draining = True
        self._tell_leaving()
        while self.num_streams:
            self._ended.clear()
            await self._ended.wait()

    async def close(self) -> None:
        """End all connections, with what was sent on them."""
        if self._server is not None:
            self._server.close()
        if self._beating is not None:
            self._beating.cancel()
        self._tell_figures()
        for door in list(self._doors):
            await door.close()
            await door.gone.wait()

    @property
    def _is_leaving(self) -> bool:
        """Where its engine has ended, Ray Serve replaces the replica some seconds later."""
        return self._is_draining or not self._replica.client.health().alive

    def _tell_leaving(self) -> None:
        for door in self._doors:
            door.channel.send(Leaving())

    async def _serve(self, streams: Streams) -> None:
        door = _Door(self._replica, Channel(streams), self._ended.set)
        self._doors.add(door)
        if self._is_leaving:
            door.channel.send(Leaving())
        try:
            await door.run()
        finally:
            self._doors.discard(door)
            if door.name not in {other.name for other in self._doors}:  # it may have connected again
                self._replica.leave_door(door.name)
            door.gone.set()

    async def _beat(self) -> None:
        while True:
            if self._is_leaving:
                self._tell_leaving()
                self._tell_figures()
            number = self.num_streams
            for door in self._doors:
                door.channel.send(Beat(number - len(door.streams)))
            await asyncio.sleep(BEAT_S)

    def _tell_figures(self) -> None:
        """Tell one front door what no report will bring any more."""
        for door in list(self._doors)[:1]:
            door.channel.send(Figures(self._replica.notes.take()))


class _Door:
    """One front door's connection."""

    def __init__(self, replica: "EngineReplica", channel: Channel, ended: Callable[[], None]) -> None:
        """`ended` is called after each request."""
        self.channel = channel
        self.streams = ServedStreams(channel, replica.client, ended)
        self.name = ""
        """As it calls itself in what it tells first."""
        self.gone = asyncio.Event()
        """Set once nothing of it is left."""
        self._replica = replica
        self._obeying: set[asyncio.Task[None]] = set()
        channel.send(replica.hello())  # first, whatever follows

    async def run(self) -> None:
        """Do what the front door asks until it is gone."""
        try:
            await self.channel.open()
            with suppress(EOFError):
                while True:
                    for message in await self.channel.receive():
                        self._handle(message)
        except Exception:  # contained: a message that cannot be read ends this connection, not the others
            log.exception("front_door_misunderstood")
        finally:
            await self.close()

    async def close(self) -> None:
        self.streams.cancel()
        await self.channel.close()

    def _handle(self, message: object) -> None:
        match message:
            case Generate() | Leave() | Abort() | OfferDraft():
                self.streams.obey(message)
            case ControlState(name):  # begun before the task of a request that comes later
                self.name = name
                obeying = asyncio.create_task(self._obey(message))
                self._obeying.add(obeying)
                obeying.add_done_callback(self._obeying.discard)
            case _:
                raise AssertionError(f"{type(message).__name__} is no message to a replica")

    async def _obey(self, controls: ControlState) -> None:
        try:
            await self._replica.obey(controls)
        except Exception:  # contained: a head that cannot be loaded costs its drafts
            log.exception("replica_did_not_obey", door=controls.door)
