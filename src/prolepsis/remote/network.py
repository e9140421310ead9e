"""Connections over TCP, on which front ends find hosts that others have started.

Both sides prove that they know the host's secret before a message is read or sent. The host makes it when it starts;
the address comes together with the secret. What follows is encrypted where a TLS context is given.
"""

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from secrets import token_bytes

from prolepsis.core.codec import ProtocolError
from prolepsis.core.engine_client import Demand
from prolepsis.core.errors import EngineDead
from prolepsis.core.figures import EngineObserver
from prolepsis.core.handshake import HANDSHAKE_S, SharedKey, connecting, listening, shake_hands
from prolepsis.core.network import end_unacknowledged
from prolepsis.remote.channel import front_end_channel, host_channel
from prolepsis.remote.host import Host
from prolepsis.remote.link import HostLink
from prolepsis.remote.messages import PROTOCOL, Status

CONNECT_S = 5.0  # how long a connection, its handshake and the first status may take
LOST_AFTER_S = 5.0  # a host that says nothing for so long is lost
MOST_STRANGERS = 64  # connections at once in the handshake; beyond, the oldest is closed for a new one
_SECRET_BYTES = 32

Tls = Callable[[ssl.Purpose], ssl.SSLContext | None]


@dataclass(frozen=True, slots=True)
class Address:
    """Where a host takes connections, and the secret of those that may."""

    name: str  # the host's, which ends with it
    machine: str
    port: int
    secret: bytes = field(repr=False)


async def connect(
    address: Address,
    observer: EngineObserver | None = None,
    *,
    front_end: bytes = b"",
    tls: ssl.SSLContext | None = None,
    demand: Callable[[], Demand] | None = None,
) -> HostLink:
    """Return a client of a host; raises `OSError`, `EOFError` or `ProtocolError` if there is no way to it.

    `front_end`: id of this side, whose earlier connection the host ends. Raises `EngineDead` if its engine has ended.
    """
    async with asyncio.timeout(CONNECT_S):
        reader, writer = await asyncio.open_connection(address.machine, address.port, ssl=tls)
        try:
            end_unacknowledged(writer.get_extra_info("socket"))
            await shake_hands(reader, writer, connecting(SharedKey(address.secret), PROTOCOL, front_end))
            channel = front_end_channel((reader, writer))
            await channel.open()
            status, *more = await channel.receive()
            assert isinstance(status, Status), "a host sends a status first"
            if not status.health.alive:
                raise EngineDead(status.health.detail)
        except BaseException:
            writer.transport.abort()
            raise
    link = HostLink(channel, status, observer, demand=demand, lost_after_s=LOST_AFTER_S)
    for message in more:
        link.take(message)
    link.attach()
    return link


class HostListener:
    """Takes connections for one host. Belongs to the event loop on which it is first asked."""

    def __init__(self, host: Host, name: str, machine: str, tls: Tls = lambda _: None) -> None:
        """`machine`: the address of this machine at which front ends reach it."""
        self._host = host
        self._address = Address(name, machine, 0, token_bytes(_SECRET_BYTES))
        self._tls = tls
        self._starting = asyncio.Lock()
        self._server: asyncio.Server | None = None
        self._strangers: dict[asyncio.StreamWriter, None] = {}  # connections in the handshake, the oldest first

    async def address(self) -> Address:
        """Return where it listens, and begin to."""
        async with self._starting:
            if self._server is None:
                context = self._tls(ssl.Purpose.CLIENT_AUTH)
                tls_s = None if context is None else HANDSHAKE_S
                self._server = await asyncio.start_server(
                    self._accept, self._address.machine, 0, ssl=context, ssl_handshake_timeout=tls_s
                )
                port = self._server.sockets[0].getsockname()[1]
                self._address = Address(self._address.name, self._address.machine, port, self._address.secret)
            return self._address

    def close(self) -> None:
        """Take no further connections."""
        if self._server is not None:
            self._server.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        end_unacknowledged(writer.get_extra_info("socket"))
        if len(self._strangers) >= MOST_STRANGERS:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.transport.abort()
        self._strangers[writer] = None
        steps = listening(SharedKey(self._address.secret), PROTOCOL, lambda _: b"")
        try:
            front_end = await shake_hands(reader, writer, steps)
        except (OSError, EOFError, ProtocolError):  # contained: it is no front end of this host
            writer.close()
            return
        except BaseException:
            writer.transport.abort()
            raise
        finally:
            self._strangers.pop(writer, None)
        await self._host.serve(host_channel((reader, writer)), front_end)
