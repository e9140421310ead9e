"""The engines of a deployment on Ray Serve, as a directory: Ray says which replicas there are and where."""

import os
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from secrets import token_bytes
from typing import Protocol

from prolepsis.core.engine_client import Demand, EngineClient
from prolepsis.core.figures import EngineObserver
from prolepsis.remote.members import StartClient
from prolepsis.remote.network import Address, connect

_LIST_TIMEOUT_S = 2.0
_ID_BYTES = 16


class Handle(Protocol):
    """What a front end asks of Ray Serve: `ray.serve.handle.DeploymentHandle` behind `prolepsis.adapters.ray.serve`."""

    async def broadcast(self, method: str, *arguments: object, timeout_s: float = ...) -> Sequence[object]:
        """Call a method of all replicas; an exception is in the place of the reply of one that is lost or silent."""


class RayHosts:
    """A `Directory` over a deployment."""

    def __init__(
        self,
        handle: Handle,
        observer: EngineObserver | None = None,
        end: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`end` is called by `close`: it ends the replicas where they are this front end's own."""
        self._handle = handle
        self._observer = observer
        self._end = end
        self._demand: Callable[[], Demand] | None = None
        self._front_end = token_bytes(_ID_BYTES)

    def follow(self, demand: Callable[[], Demand]) -> None:
        """Report to the replicas what waits for them, so that their number can follow it."""
        self._demand = demand

    async def engines(self) -> Mapping[str, StartClient]:
        replies = await self._handle.broadcast("address", timeout_s=_LIST_TIMEOUT_S)
        return {reply.name: partial(self._connect, reply) for reply in replies if isinstance(reply, Address)}

    async def close(self) -> None:
        if self._end is not None:
            await self._end()

    async def _connect(self, address: Address) -> EngineClient:
        own = tls(ssl.Purpose.SERVER_AUTH)
        return await connect(address, self._observer, front_end=self._front_end, demand=self._demand, tls=own)


def tls(purpose: ssl.Purpose) -> ssl.SSLContext | None:
    """Return Ray's own certificates where Ray uses TLS: each side shows one of its authority."""
    if os.environ.get("RAY_USE_TLS", "0").lower() not in ("1", "true"):
        return None
    context = ssl.create_default_context(purpose, cafile=os.environ["RAY_TLS_CA_CERT"])
    context.load_cert_chain(os.environ["RAY_TLS_SERVER_CERT"], os.environ["RAY_TLS_SERVER_KEY"])
    context.check_hostname = False  # the secret says that it is the replica that Ray has named
    context.verify_mode = ssl.CERT_REQUIRED
    return context
