"""One engine of many: what runs in a replica's process. Ray Serve asks it; nothing here knows of Ray."""

import os
from uuid import uuid4

from prolepsis.adapters.ray.autoscaling import IN_FLIGHT, QUEUE_AGE_S, WAITING
from prolepsis.adapters.ray.hosts import tls
from prolepsis.core.engine_client import EngineClient, EngineInfo
from prolepsis.remote.host import Host, KeptFigures
from prolepsis.remote.network import Address, HostListener


class EngineReplica:
    """Hosts one engine for front ends, which find it by `address`."""

    def __init__(self, client: EngineClient, figures: KeptFigures, *, machine: str = "127.0.0.1") -> None:
        """`machine`: the address of this machine at which front ends reach it."""
        self.name = f"{os.uname().nodename}-{os.getpid()}-{uuid4().hex[:8]}"
        self.host = Host(client, figures)
        self._listener = HostListener(self.host, self.name, machine, tls)

    async def address(self) -> Address:
        """Return where it takes connections, and begin to."""
        return await self._listener.address()

    def info(self) -> EngineInfo:
        return self.host.client.info

    def load(self) -> dict[str, float]:
        """Return what decides on the number of replicas (`prolepsis.adapters.ray.autoscaling`)."""
        health, demand = self.host.client.health(), self.host.demand
        return {
            IN_FLIGHT: health.num_running + health.num_waiting,
            WAITING: demand.num_waiting,
            QUEUE_AGE_S: demand.queue_age_s,
        }

    async def leave(self) -> None:
        """Let the requests end that are there, and take no new ones."""
        self._listener.close()
        await self.host.leave()

    async def end_connections(self) -> None:
        """End all connections, and take no new ones."""
        self._listener.close()
        await self.host.close()

    async def close(self) -> None:
        """End the engine; its requests end with `Aborted`."""
        await self.host.client.close()
        await self.end_connections()

    def check_health(self) -> None:
        """Raise if the engine cannot serve any more: the replica is then replaced."""
        health = self.host.client.health()
        if not health.alive:
            raise RuntimeError(health.detail)
