"""The application for Ray Serve: front ends as its ingress, the engines of each model as a deployment of their own.

`serve run prolepsis.adapters.ray:app`, or that import path in a configuration file of Serve, with `ServeArguments`.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from fastapi import FastAPI
from ray import serve
from ray.serve.handle import DeploymentHandle
from starlette.types import ASGIApp

from prolepsis.adapters.ray.arguments import ServeArguments, checked
from prolepsis.adapters.ray.hosts import RayHosts
from prolepsis.adapters.ray.serve import ServeHandle, engine_deployment
from prolepsis.adapters.ray.start import engines_at
from prolepsis.core.config import EngineConfig
from prolepsis.core.telemetry.logs import configure_logs
from prolepsis.core.telemetry.metrics import Metrics
from prolepsis.server.front.tracing import behind_repeating_proxy
from prolepsis.server.multi_model import MultiModelApp
from prolepsis.server.run import StartedEngine, StartEngine, application
from prolepsis.server.services import Services

_MOST_ONGOING = 4096
"""Requests in a front end: its own admission says which of them wait, and which are refused."""


class FrontEnd:
    """The server's application in a replica of Ray Serve, around the engines of other deployments, one a model."""

    def __init__(self, engines: "Sequence[DeploymentHandle[Any]]", arguments: ServeArguments) -> None:
        configure_logs()
        self._engines = engines
        self._models = arguments.served
        self._open = ExitStack()

    async def __serve_build_asgi_app__(self) -> ASGIApp:
        starts = [await _start(engines) for engines in self._engines]
        apps: list[FastAPI] = []
        services: list[Services] = []
        for model, start in reversed(list(zip(self._models, starts, strict=True))):  # the first one knows the others
            app = self._open.enter_context(application(model.engine, model.server, start, services))
            apps.insert(0, app)
            services.insert(0, app.state.services)
        names = [service.model_names[0] for service in services]
        served = MultiModelApp(dict(zip(names, apps, strict=True))) if len(apps) > 1 else apps[0]
        return behind_repeating_proxy(served)

    def __del__(self) -> None:
        self._open.close()


async def _start(engines: "DeploymentHandle[Any]") -> StartEngine:
    """Wait until one of the engines has loaded; return how to start what they are for a server."""
    info, tokenizer = await engines.info.remote(), await engines.tokenizer.remote()

    def start(_: EngineConfig, metrics: Metrics) -> StartedEngine:
        hosts = RayHosts(ServeHandle(engines), metrics)
        return StartedEngine(engines_at(hosts, info, metrics), tokenizer, follow=hosts.follow)

    return start


def application_of(arguments: dict[str, Any]) -> serve.Application:
    """Return the application; raises `ConfigError` that names wrong arguments."""
    settings = checked(arguments)
    engines = [
        engine_deployment(
            model.engine,
            model.scaling,
            name=f"engine-{i}" if i else "engine",
            num_cpus=model.engine.threads or 0,
            drain_s=settings.drain_s,
        )
        for i, model in enumerate(settings.served)
    ]
    front_end = serve.deployment(
        name="front-end",
        num_replicas=settings.front_ends,
        max_ongoing_requests=_MOST_ONGOING,
        graceful_shutdown_timeout_s=settings.drain_s,
        ray_actor_options={"num_cpus": 0},
    )
    return front_end(serve.ingress()(FrontEnd)).bind(engines, settings)
