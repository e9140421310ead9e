"""The deployment of engines on Ray Serve, and its handle as the client sees it."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import structlog
from ray import serve
from ray._common.utils import get_ray_address_file
from ray.serve._private import replica as serve_replica
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy
from ray.serve.handle import DeploymentHandle
from ray.serve.schema import LoggingConfig

from prolepsis.adapters.ray.arguments import DRAIN_S
from prolepsis.adapters.ray.autoscaling import POLICY, Scaling
from prolepsis.adapters.ray.cluster import LOOPBACK, Cluster, noted_address
from prolepsis.adapters.ray.replica import EngineReplica
from prolepsis.core.config import EngineConfig
from prolepsis.core.engine_client import EngineInfo
from prolepsis.core.telemetry.logs import configure_logs
from prolepsis.engine.kv.memory import share_for
from prolepsis.engine.native.processor import default_threads
from prolepsis.engine.start import start_engine
from prolepsis.engine.text.model_tokenizer import ModelTokenizer
from prolepsis.remote.host import KeptFigures
from prolepsis.remote.messages import LogSettings

log = structlog.get_logger(__name__)

CLAIMS_NOTHING: Mapping[str, int] = {"num_cpus": 0}
"""Of replicas of one machine: their threads are what they take, and Ray would count cores, not use."""
_LOOK_BACK_S = 15.0
"""Of the means that decide on the number of replicas; Ray Serve takes figures of replicas every 10 seconds."""


class ServedReplica(EngineReplica):
    """An `EngineReplica` in a process of Ray Serve."""

    def __init__(self, config: EngineConfig, logs: LogSettings) -> None:
        configure_logs(logs.level, as_json=logs.as_json)  # first: without it, lines would show prompts
        figures = KeptFigures()
        engine = start_engine(config, figures)
        machine = ray.util.get_node_ip_address()
        if machine == LOOPBACK:
            _keep_on_loopback()
        super().__init__(engine.client, figures, machine=machine)
        self._tokenizer = engine.tokenizer

    def tokenizer(self) -> ModelTokenizer:
        return self._tokenizer

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Ray Serve asks by this name."""
        return self.load()

    async def __del__(self) -> None:
        """Ray Serve calls and awaits this before it ends the process, which has `drain_s` for it."""
        await self.leave()


def _keep_on_loopback() -> None:
    """Have this replica's own port of Ray Serve, which nothing here calls, listen on loopback; Ray has no setting."""
    add = getattr(serve_replica, "add_port_to_grpc_server", None)
    if add is None:
        log.warning("replica_port_open", detail="Ray Serve listens on a port of each replica on all addresses")
        return

    def add_on_loopback(server: object, address: str) -> object:
        return add(server, address.replace("[::]", LOOPBACK))

    serve_replica.add_port_to_grpc_server = add_on_loopback


@dataclass(frozen=True, slots=True)
class ServeHandle:
    """A `Handle` over Ray Serve's."""

    handle: DeploymentHandle[Any]

    async def broadcast(self, method: str, *arguments: object, timeout_s: float = 60.0) -> Sequence[object]:
        # `results_async` would return nothing of the others where one replica is silent
        async with asyncio.timeout(timeout_s):
            results = await self.handle.broadcast(method, *arguments)._fetch_replica_results_async()
        replies = [asyncio.ensure_future(result.get_async()) for result in results]
        if replies:
            await asyncio.wait(replies, timeout=timeout_s)
        return [_reply_of(reply) for reply in replies]


def _reply_of(reply: "asyncio.Future[object]") -> object:
    if not reply.done() or reply.cancelled():
        reply.cancel()  # and not waited for: Ray may take its time
        return TimeoutError("the replica says nothing")
    return reply.exception() or reply.result()


def engine_deployment(
    config: EngineConfig,
    scaling: Scaling,
    *,
    name: str = "engine",
    num_cpus: int = 0,
    drain_s: float = DRAIN_S,
    logs: LogSettings | None = None,
) -> serve.Application:
    """Return engines as replicas that claim so many CPUs of the cluster each, and a GPU if they compute on one."""
    resources = {"num_cpus": num_cpus, "num_gpus": int(config.device == "cuda")}
    deployment = replicas_of(ServedReplica, scaling, name=name, resources=resources, drain_s=drain_s)
    return deployment.bind(config, logs or LogSettings())


def replicas_of(
    kind: type[EngineReplica],
    scaling: Scaling,
    *,
    name: str = "engine",
    resources: Mapping[str, int] = CLAIMS_NOTHING,
    drain_s: float = DRAIN_S,
) -> serve.Deployment:
    """Return the deployment of replicas of one kind.

    A replica that is to end has `drain_s` for its requests; those that take longer go on in another.
    """
    number: dict[str, Any] = {"num_replicas": scaling.most}
    if not scaling.is_fixed:
        autoscaling = AutoscalingConfig(
            min_replicas=scaling.least,
            max_replicas=scaling.most,
            target_ongoing_requests=scaling.samples_per_replica,
            upscale_delay_s=scaling.grow_after_s,
            downscale_delay_s=scaling.shrink_after_s,
            look_back_period_s=_LOOK_BACK_S,
            policy=AutoscalingPolicy(policy_function=POLICY),
        )
        number = {"autoscaling_config": autoscaling}
    deploy = serve.deployment(
        name=name,
        **number,
        max_ongoing_requests=256,  # asked for addresses only; generation does not pass through Ray
        health_check_period_s=2.0,
        health_check_timeout_s=5.0,  # three in a row, and the replica is killed: its requests go on in another
        graceful_shutdown_timeout_s=drain_s,
        ray_actor_options=dict(resources),
        logging_config=LoggingConfig(log_level="WARNING", enable_access_log=False),
    )
    return deploy(kind)


@dataclass(frozen=True, slots=True)
class LocalReplicas:
    """Replicas that are ready."""

    handle: ServeHandle
    info: EngineInfo
    tokenizer: ModelTokenizer


def sharing_machine(config: EngineConfig, num_replicas: int) -> EngineConfig:
    """Return the configuration of engines that share the cores and the free memory of this machine."""
    threads = config.threads or max(1, default_threads() // num_replicas)
    return config.model_copy(update={"threads": threads, "kv_memory": share_for(config.kv_memory, num_replicas)})


def start_on(cluster: Cluster, config: EngineConfig, scaling: Scaling, logs: LogSettings) -> LocalReplicas:
    """Start replicas, which share the cores of this machine where Ray is the server's own; return once all are ready.

    Raises `ConnectionError` without the cluster, and `ValueError` for what is no address.
    """
    if cluster.is_own:
        replicas = engine_deployment(sharing_machine(config, scaling.most), scaling, logs=logs)
    else:
        replicas = engine_deployment(config, scaling, num_cpus=config.threads or 0, logs=logs)
    handle = started(replicas, cluster)
    info, tokenizer = (getattr(handle.handle, name).remote().result(timeout_s=60.0) for name in ("info", "tokenizer"))
    return LocalReplicas(handle, info, tokenizer)


def started(replicas: serve.Application, cluster: Cluster) -> ServeHandle:
    """Start replicas alone on a cluster; return once all are ready.

    An own one joins no other: neither what RAY_ADDRESS names nor what an earlier Ray noted on this machine.
    """
    if cluster.is_own:
        ray.init(address="local", include_dashboard=False, configure_logging=False, _node_ip_address=LOOPBACK)
    else:
        address = noted_address(Path(get_ray_address_file(None))) if cluster.address == "auto" else cluster.address
        ray.init(address=address, configure_logging=False)
    serve.start(proxy_location="Disabled", logging_config=LoggingConfig(log_level="WARNING", enable_access_log=False))
    serve.run(replicas, name=cluster.application, route_prefix=None)
    return ServeHandle(serve.get_app_handle(cluster.application))


def stop_on(cluster: Cluster) -> None:
    """End the replicas, and Ray where it is the server's own; another's cluster keeps all else that it serves."""
    if cluster.is_own:
        serve.shutdown()
    elif ray.is_initialized():
        serve.delete(cluster.application)
    ray.shutdown()
