"""Starts engine replicas for a server, with the client that continues a lost replica's requests in another."""

import asyncio
import sys
from functools import partial

from prolepsis.adapters.ray.autoscaling import Scaling
from prolepsis.adapters.ray.cluster import Cluster, prepare, started_aside
from prolepsis.adapters.ray.hosts import RayHosts
from prolepsis.core.config import OWN_CLUSTER, EngineConfig
from prolepsis.core.engine_client import EngineInfo
from prolepsis.core.errors import ConfigError
from prolepsis.core.extras import RAY
from prolepsis.core.phases import phase
from prolepsis.core.telemetry.metrics import Metrics
from prolepsis.remote.engines import Engines
from prolepsis.remote.members import FailoverSettings
from prolepsis.remote.messages import LogSettings
from prolepsis.server.run import StartedEngine

_SETTINGS = FailoverSettings(max_losses=10, wait_s=600.0, max_restarts=sys.maxsize)
"""Replicas come and go (deployments, preempted nodes), so that a long request may lose several. Ray starts others in
their place; this side connects to each as long as it is listed."""


def start_replicas(
    config: EngineConfig,
    scaling: Scaling,
    metrics: Metrics,
    address: str = OWN_CLUSTER,
    logs: LogSettings | None = None,
) -> StartedEngine:
    """Start engines, which end with the client, on a Ray of this server alone or on the cluster at `address`.

    Raises `ConfigError` if Ray is not installed, the engine cannot be a replica or the cluster is not there, and
    `EngineDead` if none starts.
    """
    check(config)
    cluster = Cluster(address)
    prepare(cluster)  # first: to look for a part of Ray imports Ray
    RAY.require(f"replicas {scaling.most}", "replicas")
    from prolepsis.adapters.ray.serve import start_on, stop_on

    end = partial(stop_on, cluster)
    start = partial(start_on, cluster, config, scaling, logs or LogSettings())
    try:
        with phase(f"starting replicas, {scaling.most} at most"):
            local = started_aside(start, nothing if cluster.is_own else end)
    except (ConnectionError, ValueError) as error:
        raise ConfigError(f"ray_address is {address!r}: {error}", param="ray_address") from error
    hosts = RayHosts(local.handle, metrics, end=partial(asyncio.to_thread, end))
    return StartedEngine(engines_at(hosts, local.info, metrics), local.tokenizer, follow=hosts.follow)


def nothing() -> None:
    """End nothing: Ray's processes end with this one."""


def check(config: EngineConfig) -> None:
    """Raise `ConfigError` for an engine that cannot be a replica."""
    if config.engine != "prolepsis":
        raise ConfigError(f"engine is {config.engine!r}; allowed with replicas: prolepsis", param="engine")


def engines_at(hosts: RayHosts, info: EngineInfo, metrics: Metrics) -> Engines:
    """Return the client of all replicas; `info` is of one of them."""
    return Engines((), metrics.registry, _SETTINGS, directory=hosts, info=info)
