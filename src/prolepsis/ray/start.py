"""Starts engine replicas for a server, with the client that continues a lost replica's requests in another."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from prolepsis.core.config import EngineConfig
from prolepsis.core.errors import ConfigError
from prolepsis.core.extras import RAY
from prolepsis.engine.client import Demand
from prolepsis.failover.client import FailoverClient
from prolepsis.failover.members import FailoverSettings, Member
from prolepsis.models.files.tokenizer import Tokenizer
from prolepsis.ray.autoscaling import Scaling
from prolepsis.ray.client import ReplicasClient
from prolepsis.telemetry.metrics import Metrics

_LOSSES = FailoverSettings(max_losses=10, max_failed_steps=1)
"""Replicas come and go (deployments, preempted nodes), so that a long request may lose several."""


@dataclass(frozen=True, slots=True)
class StartedReplicas:
    client: FailoverClient
    tokenizer: Tokenizer
    follow: Callable[[Callable[[], Demand]], None]
    """Is given what says the demand."""


def start_replicas(config: EngineConfig, scaling: Scaling, metrics: Metrics) -> StartedReplicas:
    """Start Ray on this machine with engines, which end with the client.

    Raises `ConfigError` if Ray is not installed or the engine cannot be a replica, and `EngineDead` if none starts.
    """
    check(config)
    RAY.require(f"replicas {scaling.most}", "replicas")
    from prolepsis.ray.serve import start_local, stop_local

    local = start_local(config, scaling)
    client = ReplicasClient(local.handle, local.reports, metrics, end=partial(_in_thread, stop_local))
    return StartedReplicas(kept(client, metrics), local.tokenizer, client.follow)


def check(config: EngineConfig) -> None:
    """Raise `ConfigError` for an engine that cannot be a replica."""
    if config.engine != "prolepsis":
        raise ConfigError(f"engine is {config.engine!r}; allowed with replicas: prolepsis", param="engine")


def kept(replicas: ReplicasClient, metrics: Metrics) -> FailoverClient:
    """Return the client that keeps the streams of all replicas."""
    return FailoverClient([Member(replicas)], metrics.registry, _LOSSES)


async def _in_thread(work: Callable[[], None]) -> None:
    await asyncio.get_running_loop().run_in_executor(None, work)
