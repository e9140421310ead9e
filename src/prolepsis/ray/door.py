"""The application for Ray Serve: front doors as its ingress, engines as a deployment of their own.

`serve run prolepsis.ray:app`, or that import path in a configuration file of Serve, with `Arguments`.
"""

from contextlib import ExitStack
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field
from ray import serve
from ray.serve.handle import DeploymentHandle

from prolepsis.api.run import StartedEngine, application
from prolepsis.core.config import EngineConfig, ServerConfig
from prolepsis.core.errors import EngineDead
from prolepsis.ray.client import ReplicasClient
from prolepsis.ray.messages import Report
from prolepsis.ray.serve import ServeHandle, engine_deployment
from prolepsis.ray.start import kept
from prolepsis.telemetry.logs import configure_logs
from prolepsis.telemetry.metrics import Metrics


class Arguments(BaseModel):
    """Arguments of the application; `engine` and `server` are the settings of `prolepsis serve`."""

    model_config = ConfigDict(extra="forbid")

    engine: EngineConfig = Field(default_factory=EngineConfig)
    server: ServerConfig = Field(default_factory=ServerConfig)
    replicas: int = Field(default=1, ge=1)
    doors: int = Field(default=1, ge=1)
    """Front doors; more than one need a store that they share, such as PostgreSQL."""


class FrontDoor:
    """The server's application in a replica of Ray Serve, around the engines of another deployment."""

    def __init__(self, engines: "DeploymentHandle[Any]", arguments: Arguments) -> None:
        configure_logs()
        self._engines = engines
        self._arguments = arguments
        self._open = ExitStack()

    async def __serve_build_asgi_app__(self) -> FastAPI:
        handle = ServeHandle(self._engines)
        tokenizer = await self._engines.tokenizer.remote()  # waits until one engine has loaded
        reports = [one for one in await handle.broadcast("report") if isinstance(one, Report)]
        if not reports:
            raise EngineDead("no replica reports")

        def start(_: EngineConfig, metrics: Metrics) -> StartedEngine:
            return StartedEngine(kept(ReplicasClient(handle, reports, metrics), metrics), tokenizer)

        arguments = self._arguments
        made = self._open.enter_context(application(arguments.engine, arguments.server, start))
        return made.app

    def __del__(self) -> None:
        self._open.close()


def application_of(arguments: dict[str, Any]) -> serve.Application:
    """Return the application; raises `ValueError` that names wrong arguments."""
    checked = Arguments.model_validate(arguments)
    engines = engine_deployment(checked.engine, checked.replicas)
    door = serve.deployment(name="door", num_replicas=checked.doors, ray_actor_options={"num_cpus": 0})
    return door(serve.ingress()(FrontDoor)).bind(engines, checked)
