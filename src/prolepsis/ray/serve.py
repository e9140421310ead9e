"""The deployment of engines on Ray Serve, the router of its requests, and its handle as the client sees it."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray import serve
from ray.exceptions import ActorUnavailableError, RayActorError, RayTaskError
from ray.serve.config import RequestRouterConfig
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle, DeploymentResponseGenerator
from ray.serve.request_router import FIFOMixin, PendingRequest, RequestRouter, RunningReplica
from ray.serve.schema import LoggingConfig

from prolepsis.core.config import EngineConfig
from prolepsis.core.errors import EngineDead, EngineError, ReplicaLost
from prolepsis.core.events import Event
from prolepsis.core.requests import GenerateRequest
from prolepsis.engine.process.messages import Refused
from prolepsis.engine.start import start_engine
from prolepsis.models.files.tokenizer import Tokenizer
from prolepsis.native.processor import default_threads
from prolepsis.ray.affinity import prefix_key, ranked
from prolepsis.ray.messages import ControlState, Report
from prolepsis.ray.replica import EngineReplica, Notes

APPLICATION = "prolepsis-engines"
ROUTER = "prolepsis.ray.serve.PrefixAffinityRouter"


class PrefixAffinityRouter(FIFOMixin, RequestRouter):  # type: ignore[misc]  # ray has no types
    """Sends requests with one prefix to one replica, within a bound on its load (`prolepsis.ray.affinity`)."""

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        by_name = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        request = pending_request.args[0] if pending_request and pending_request.args else None
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True
        key = prefix_key(request) if isinstance(request, GenerateRequest) else b""
        cache = self.replica_queue_len_cache
        loads = {name: cache.get(replica.replica_id) or 0 for name, replica in by_name.items()}
        return [[by_name[name]] for name in ranked(key, loads)]


class ServedReplica(EngineReplica):
    """An `EngineReplica` in a process of Ray Serve."""

    def __init__(self, config: EngineConfig) -> None:
        notes = Notes()
        engine = start_engine(config, notes)
        super().__init__(engine.client, notes)
        self._tokenizer = engine.tokenizer

    def tokenizer(self) -> Tokenizer:
        return self._tokenizer


@dataclass(frozen=True, slots=True)
class ServeHandle:
    """A `Handle` over Ray Serve's."""

    handle: DeploymentHandle[Any]

    def stream(self, request: GenerateRequest, controls: ControlState) -> "ServeResponses":
        method = self.handle.options(stream=True).generate
        return ServeResponses(method.remote(request, controls))

    async def broadcast(self, method: str, *arguments: object) -> Sequence[object]:
        responses = self.handle.broadcast(method, *arguments)
        return list(await responses.results_async(timeout_s=60.0, return_exceptions=True))


@dataclass(slots=True)
class ServeResponses:
    """The events of one request from Ray Serve."""

    generator: DeploymentResponseGenerator[Any]

    async def __aiter__(self) -> AsyncIterator[Event | Refused]:
        try:
            async for response in self.generator:
                yield response
        except (RayActorError, ActorUnavailableError, RayServeException) as error:
            raise ReplicaLost(f"the replica is lost: {type(error).__name__}") from error
        except RayTaskError as error:  # the replica lives, and did not expect this
            raise EngineError(f"the replica failed: {error.cause!r}") from error

    def cancel(self) -> None:
        self.generator.cancel()


def engine_deployment(config: EngineConfig, num_replicas: int) -> serve.Application:
    """Return engine replicas that share the cores of this machine."""
    threads = config.threads or max(1, default_threads() // num_replicas)
    deploy = serve.deployment(
        name="engine",
        num_replicas=num_replicas,
        max_ongoing_requests=256,
        health_check_period_s=2.0,
        graceful_shutdown_timeout_s=60.0,
        request_router_config=RequestRouterConfig(request_router_class=ROUTER),
        ray_actor_options={"num_cpus": 0},  # its threads are what it takes, and Ray would count cores, not use
        logging_config=LoggingConfig(log_level="WARNING", enable_access_log=False),
    )
    return deploy(ServedReplica).bind(config.model_copy(update={"threads": threads}))


@dataclass(frozen=True, slots=True)
class LocalReplicas:
    """Replicas that are ready."""

    handle: ServeHandle
    reports: Sequence[Report]
    tokenizer: Tokenizer


def start_local(config: EngineConfig, num_replicas: int) -> LocalReplicas:
    """Start Ray on this machine, and replicas that share its cores; return once all are ready."""
    ray.init(include_dashboard=False, configure_logging=False, _node_ip_address="127.0.0.1")
    serve.start(proxy_location="Disabled", logging_config=LoggingConfig(log_level="WARNING", enable_access_log=False))
    serve.run(engine_deployment(config, num_replicas), name=APPLICATION, route_prefix=None)
    handle = serve.get_app_handle(APPLICATION)
    reports = [reply for reply in handle.broadcast("report").results(timeout_s=60.0) if isinstance(reply, Report)]
    if not reports:
        raise EngineDead("no replica reports")
    return LocalReplicas(ServeHandle(handle), reports, handle.tokenizer.remote().result(timeout_s=60.0))


def stop_local() -> None:
    """End the replicas and Ray."""
    serve.shutdown()
    ray.shutdown()
