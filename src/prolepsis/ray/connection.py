"""Connections between front doors and replicas, which tokens take instead of calls through Ray.

Messages are pickled, so no message is read before both sides have proven that they know a secret, and have the same
version of this program and of its messages. A replica makes its secret when it starts and tells it over Ray, which
knows what belongs to the cluster. What follows is as open to readers of the network as Ray's own calls: encrypted where
Ray is told to use TLS.
"""

import asyncio
import hmac
import os
import ssl
from collections.abc import Awaitable, Callable
from secrets import token_bytes
from typing import Literal

import structlog

from prolepsis.core.network import end_unacknowledged
from prolepsis.engine.process.channel import Streams
from prolepsis.ray.messages import VERSION, Address

CONNECT_S = 5.0
"""How long a connection and its proof may take."""
_UNACKNOWLEDGED_S = 10.0
"""A connection ends if its other side has not acknowledged data for so long."""
_NUM_BYTES = 32
_VERSION_BYTES = 64

Side = Literal["door", "replica"]

log = structlog.get_logger(__name__)


async def connect(address: Address, version: str = VERSION) -> Streams:
    """Return a connection to a replica; raises `OSError`, `TimeoutError` or `EOFError` if there is none to it."""
    async with asyncio.timeout(CONNECT_S):
        context = _tls(ssl.Purpose.SERVER_AUTH)
        reader, writer = await asyncio.open_connection(address.host, address.port, ssl=context)
        try:
            await _prove(reader, writer, address.secret, "door", version)
        except BaseException:
            writer.close()
            raise
    return reader, writer


async def listen(
    host: str, secret: bytes, serve: Callable[[Streams], Awaitable[None]]
) -> tuple[asyncio.Server, Address]:
    """Take connections on a free port, and have those served that prove to know the secret."""

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(CONNECT_S):
                await _prove(reader, writer, secret, "replica", VERSION)
        except BaseException as error:
            writer.close()
            if isinstance(error, OSError | EOFError | TimeoutError):  # contained: it is none of ours
                return
            raise
        await serve((reader, writer))

    server = await asyncio.start_server(accept, host, 0, ssl=_tls(ssl.Purpose.CLIENT_AUTH))
    return server, Address(host, server.sockets[0].getsockname()[1], secret)


def new_secret() -> bytes:
    return token_bytes(_NUM_BYTES)


async def _prove(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: bytes, side: Side, version: str
) -> None:
    """Show that this side knows the secret; raises `PermissionError` unless the other one does, and is of this version.

    Each side names itself and both sides' random numbers, so that no proof can be shown a second time. Both prove at
    once: a stranger who connects gets a proof, which does not help to find a secret of 32 random bytes. The key of a
    propose server may be weaker and stays for long, so there the one who connects proves first, in frames that hold
    terms too (`spec.remote.handshake`). The two have only HMAC in common.
    """
    end_unacknowledged(writer.get_extra_info("socket"), _UNACKNOWLEDGED_S)
    own = token_bytes(_NUM_BYTES)
    writer.write(own)
    other = await reader.readexactly(_NUM_BYTES)
    numbers = own + other if side == "door" else other + own
    writer.write(_proof(secret, side, numbers))
    others_side: Side = "replica" if side == "door" else "door"
    if not hmac.compare_digest(await reader.readexactly(_NUM_BYTES), _proof(secret, others_side, numbers)):
        raise PermissionError(f"the {others_side} does not know the secret")
    writer.write(version.encode().ljust(_VERSION_BYTES))
    others = (await reader.readexactly(_VERSION_BYTES)).decode().rstrip()
    if others != version:
        message = f"the {others_side} is prolepsis {others}, the {side} {version}; allowed: one version"
        log.error("other_version", detail=message)
        raise PermissionError(message)


def _proof(secret: bytes, side: Side, numbers: bytes) -> bytes:
    return hmac.digest(secret, side.encode() + numbers, "sha256")


def _tls(purpose: ssl.Purpose) -> ssl.SSLContext | None:
    """Return Ray's own certificates where Ray uses TLS: each side shows one of its authority."""
    if os.environ.get("RAY_USE_TLS", "0").lower() not in ("1", "true"):
        return None
    context = ssl.create_default_context(purpose, cafile=os.environ["RAY_TLS_CA_CERT"])
    context.load_cert_chain(os.environ["RAY_TLS_SERVER_CERT"], os.environ["RAY_TLS_SERVER_KEY"])
    context.check_hostname = False  # the secret says that it is the replica that Ray has named
    context.verify_mode = ssl.CERT_REQUIRED
    return context
