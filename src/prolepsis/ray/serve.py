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
from prolepsis.ray.messages import ControlState, Report
from prolepsis.ray.replica import EngineReplica, Notes

APPLICATION = "prolepsis-engines"
ROUTER = "prolepsis.ray.serve.PrefixAffinityRouter"


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


def engine_deployment(config: EngineConfig, num_replicas: int, router: str = ROUTER) -> serve.Application:
    """Return engine replicas that share the cores of this machine."""
    threads = config.threads or max(1, default_threads() // num_replicas)
    return replicas_of(ServedReplica, num_replicas, router).bind(config.model_copy(update={"threads": threads}))


def replicas_of(kind: type[EngineReplica], num_replicas: int, router: str = ROUTER) -> serve.Deployment:
    """Return the deployment of replicas of one kind; `router` names the class that chooses among them."""
    deploy = serve.deployment(
        name="engine",
        num_replicas=num_replicas,
        max_ongoing_requests=256,
        health_check_period_s=2.0,
        graceful_shutdown_timeout_s=60.0,
        request_router_config=RequestRouterConfig(request_router_class=router),
        ray_actor_options={"num_cpus": 0},  # its threads are what it takes, and Ray would count cores, not use
        logging_config=LoggingConfig(log_level="WARNING", enable_access_log=False),
    )
    return deploy(kind)


@dataclass(frozen=True, slots=True)
class LocalReplicas:
    """Replicas that are ready."""

    handle: ServeHandle
    reports: Sequence[Report]
    tokenizer: Tokenizer


def start_local(config: EngineConfig, num_replicas: int) -> LocalReplicas:
    """Start Ray on this machine, and replicas that share its cores; return once all are ready."""
    handle = started(engine_deployment(config, num_replicas))
    reports = [one for one in handle.handle.broadcast("report").results(timeout_s=60.0) if isinstance(one, Report)]
    if not reports:
        raise EngineDead("no replica reports")
    return LocalReplicas(handle, reports, handle.handle.tokenizer.remote().result(timeout_s=60.0))


def started(replicas: serve.Application) -> ServeHandle:
    """Start Ray on this machine with replicas alone; return once all are ready."""
    ray.init(include_dashboard=False, configure_logging=False, _node_ip_address="127.0.0.1")
    serve.start(proxy_location="Disabled", logging_config=LoggingConfig(log_level="WARNING", enable_access_log=False))
    serve.run(replicas, name=APPLICATION, route_prefix=None)
    return ServeHandle(serve.get_app_handle(APPLICATION))


def stop_local() -> None:
    """End the replicas and Ray."""
    serve.shutdown()
    ray.shutdown()
