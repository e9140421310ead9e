"""The deployment of engines on Ray Serve, the router of its requests, and its handle as the client sees it."""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from grpc.aio import AioRpcError
from ray import serve
from ray.exceptions import ActorUnavailableError, RayActorError
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, RequestRouterConfig
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle, DeploymentResponseGenerator
from ray.serve.request_router import FIFOMixin, PendingRequest, ReplicaID, RequestRouter, RunningReplica
from ray.serve.schema import LoggingConfig

from prolepsis.core.config import EngineConfig
from prolepsis.core.errors import EngineDead, EngineError, ReplicaLost
from prolepsis.core.events import Event
from prolepsis.core.requests import GenerateRequest
from prolepsis.engine.process.messages import Refused
from prolepsis.engine.start import start_engine
from prolepsis.models.files.tokenizer import Tokenizer
from prolepsis.native.processor import default_threads
from prolepsis.ray.affinity import PrefixRouter
from prolepsis.ray.arguments import DRAIN_S
from prolepsis.ray.autoscaling import POLICY, Scaling
from prolepsis.ray.messages import Began, ControlState, Report
from prolepsis.ray.replica import EngineReplica, Notes

APPLICATION = "prolepsis-engines"
ROUTER = "prolepsis.ray.serve.PrefixAffinityRouter"
ENDS_SILENT_ONES = ("RAY_SERVE_FORCE_STOP_UNHEALTHY_REPLICAS", "1")
"""A variable for Ray Serve's controller: replicas that fail their health checks are killed, and not drained first."""
CLAIMS_NOTHING: Mapping[str, int] = {"num_cpus": 0}
"""Of replicas of one machine: their threads are what they take, and Ray would count cores, not use."""
_LOOK_BACK_S = 15.0
"""Of the means that decide on the number of replicas; Ray Serve takes figures of replicas every 10 seconds."""


class PrefixAffinityRouter(FIFOMixin, RequestRouter):  # type: ignore[misc]  # ray has no types
    """Sends requests to the replica that holds their prefix, within a bound on its load (`prolepsis.ray.affinity`)."""

    def initialize_state(self) -> None:
        """Begin without knowing what replicas hold; Ray Serve calls this before anything else."""
        self._prefixes = PrefixRouter()

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        request = request_of(pending_request)
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True
        if request is None:  # a call about the engine, which any replica answers
            return [candidate_replicas]
        cache = self.replica_queue_len_cache
        by_name = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        loads = {name: cache.get(replica.replica_id) or 0 for name, replica in by_name.items()}
        return [[by_name[name]] for name in self._prefixes.ranked(request, loads)]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: object) -> None:
        request = request_of(pending_request)
        if request is not None:
            self._prefixes.sent(request, replica_id.unique_id)


def request_of(pending: PendingRequest | None) -> GenerateRequest | None:
    """Return what a call asks an engine to generate; None: it asks something else."""
    first = pending.args[0] if pending is not None and pending.args else None
    return first if isinstance(first, GenerateRequest) else None


class ServedReplica(EngineReplica):
    """An `EngineReplica` in a process of Ray Serve."""

    def __init__(self, config: EngineConfig) -> None:
        notes = Notes()
        engine = start_engine(config, notes)
        super().__init__(engine.client, notes)
        self._tokenizer = engine.tokenizer

    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Ray Serve asks by this name."""
        return self.load()


@dataclass(frozen=True, slots=True)
class ServeHandle:
    """A `Handle` over Ray Serve's."""

    handle: DeploymentHandle[Any]
    is_local: bool = False
    """All replicas are on this machine: requests and events then go over gRPC, at half of what objects of Ray cost.

    Between machines they are objects, as Ray ends a call whose replica it gave up, and a partition ends no connection.
    """

    def stream(self, request: GenerateRequest, controls: ControlState) -> "ServeResponses":
        method = self.handle.options(stream=True, _by_reference=not self.is_local).generate
        return ServeResponses(method.remote(request, controls))

    async def broadcast(self, method: str, *arguments: object, timeout_s: float = 60.0) -> Sequence[object]:
        # `results_async` would return nothing of the others where one replica is silent
        results = await self.handle.broadcast(method, *arguments)._fetch_replica_results_async()
        waiting = [asyncio.wait_for(one.get_async(), timeout_s) for one in results]
        return list(await asyncio.gather(*waiting, return_exceptions=True))


@dataclass(slots=True)
class ServeResponses:
    """What a replica yields for one request, from Ray Serve."""

    generator: DeploymentResponseGenerator[Any]

    async def __aiter__(self) -> AsyncIterator[Began | Event | Refused]:
        try:
            async for response in self.generator:
                yield response
        except (RayActorError, ActorUnavailableError, RayServeException, AioRpcError) as error:
            raise ReplicaLost(f"the replica is lost: {type(error).__name__}") from error
        except Exception as error:  # contained: the replica lives, and did not expect this
            raise EngineError(f"the replica failed: {error!r}") from error

    def cancel(self) -> None:
        self.generator.cancel()


def engine_deployment(
    config: EngineConfig,
    scaling: Scaling,
    *,
    name: str = "engine",
    num_cpus: int = 0,
    drain_s: float = DRAIN_S,
    router: str = ROUTER,
) -> serve.Application:
    """Return engines as replicas that claim so many CPUs of the cluster each, and a GPU if they compute on one."""
    resources = {"num_cpus": num_cpus, "num_gpus": int(config.device == "cuda")}
    deployment = replicas_of(ServedReplica, scaling, router, name=name, resources=resources, drain_s=drain_s)
    return deployment.bind(config)


def replicas_of(
    kind: type[EngineReplica],
    scaling: Scaling,
    router: str = ROUTER,
    *,
    name: str = "engine",
    resources: Mapping[str, int] = CLAIMS_NOTHING,
    drain_s: float = DRAIN_S,
) -> serve.Deployment:
    """Return the deployment of replicas of one kind; `router` names the class that chooses among them.

    A replica that is to end has `drain_s` for its requests; those that take longer go on in another.
    """
    deploy = serve.deployment(
        name=name,
        **_number(scaling),
        max_ongoing_requests=256,
        health_check_period_s=2.0,
        health_check_timeout_s=5.0,  # three in a row, and the replica is killed: its requests go on in another
        graceful_shutdown_timeout_s=drain_s,
        request_router_config=RequestRouterConfig(request_router_class=router),
        ray_actor_options=dict(resources),
        logging_config=LoggingConfig(log_level="WARNING", enable_access_log=False),
    )
    return deploy(kind)


def _number(scaling: Scaling) -> dict[str, Any]:
    """Return the options of a deployment that say how many replicas it has."""
    if scaling.is_fixed:
        return {"num_replicas": scaling.most}
    autoscaling = AutoscalingConfig(
        min_replicas=scaling.least,
        max_replicas=scaling.most,
        target_ongoing_requests=scaling.samples_per_replica,
        upscale_delay_s=scaling.grow_after_s,
        downscale_delay_s=scaling.shrink_after_s,
        look_back_period_s=_LOOK_BACK_S,
        policy=AutoscalingPolicy(policy_function=POLICY),
    )
    return {"autoscaling_config": autoscaling}


@dataclass(frozen=True, slots=True)
class LocalReplicas:
    """Replicas that are ready."""

    handle: ServeHandle
    reports: Sequence[Report]
    tokenizer: Tokenizer


def sharing_cores(config: EngineConfig, num_replicas: int) -> EngineConfig:
    """Return the configuration of engines that share the cores of this machine."""
    return config.model_copy(update={"threads": config.threads or max(1, default_threads() // num_replicas)})


def start_local(config: EngineConfig, scaling: Scaling) -> LocalReplicas:
    """Start Ray on this machine, and replicas that share its cores; return once all are ready."""
    handle = started(engine_deployment(sharing_cores(config, scaling.most), scaling))
    reports = [one for one in handle.handle.broadcast("report").results(timeout_s=60.0) if isinstance(one, Report)]
    if not reports:
        raise EngineDead("no replica reports")
    return LocalReplicas(handle, reports, handle.handle.tokenizer.remote().result(timeout_s=60.0))


def started(replicas: serve.Application) -> ServeHandle:
    """Start Ray on this machine with replicas alone; return once all are ready."""
    os.environ.setdefault(*ENDS_SILENT_ONES)
    ray.init(include_dashboard=False, configure_logging=False, _node_ip_address="127.0.0.1")
    serve.start(proxy_location="Disabled", logging_config=LoggingConfig(log_level="WARNING", enable_access_log=False))
    serve.run(replicas, name=APPLICATION, route_prefix=None)
    return ServeHandle(serve.get_app_handle(APPLICATION), is_local=True)


def stop_local() -> None:
    """End the replicas and Ray."""
    serve.shutdown()
    ray.shutdown()
