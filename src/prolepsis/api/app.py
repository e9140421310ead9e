"""Puts the application together: admission, sign-in, the OpenAI surface, and the list of features."""

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial

from fastapi import FastAPI

from prolepsis.api.auth.middleware import AuthMiddleware
from prolepsis.api.connections import check_exposure
from prolepsis.api.features import Sources, features_of
from prolepsis.api.health import status_routes
from prolepsis.api.openai.routes import openai_routes
from prolepsis.api.services import Gateway, Services
from prolepsis.api.tokenizer import Tokenizer
from prolepsis.api.tracing import RequestIdMiddleware, TraceMiddleware
from prolepsis.core.config import ServerConfig
from prolepsis.engine.client import EngineClient
from prolepsis.telemetry.metrics import Metrics
from prolepsis.web.feature import running
from prolepsis.web.intake import Intake
from prolepsis.web.routes import Application
from prolepsis.web.uploads import Uploads, body_limit


def build(
    config: ServerConfig,
    client: EngineClient,
    tokenizer: Tokenizer,
    metrics: Metrics,
    gateway: Gateway | None = None,
    *,
    sources: Sources | None = None,
) -> FastAPI:
    """Return the application around a running engine; when it shuts down it closes `client`.

    A server drains the application's `state.admission`. Raises `ConfigError` if the address needs keys and there are
    none.
    """
    gateway = gateway or Gateway()
    check_exposure(config, gateway.keys)
    features = features_of(
        config,
        client,
        tokenizer,
        metrics,
        sources or Sources(),
        base_plan=gateway.base_plan,
        keys=gateway.keys,
    )
    intake = Intake(Uploads(config.max_body_bytes or body_limit(client.info.max_model_len)))
    services = Services(
        config=config, client=client, tokenizer=tokenizer, started=int(time.time()), features=features, intake=intake
    )
    admission = features.admission
    routes = (*openai_routes(services), *status_routes(services), *features.routes)
    app = Application(routes, partial(_while_serving, services), admission.metrics.refuse)
    app.state.admission = admission
    app.state.features = features.all
    app.state.intake = intake
    app.add_middleware(
        AuthMiddleware,
        keys=gateway.keys,
        config=config,
        metrics=admission.metrics,
        intake=intake,
        routes=routes,
    )
    app.add_middleware(RequestIdMiddleware, metrics=metrics)
    app.add_middleware(TraceMiddleware, tracing=features.tracing)
    return app


@asynccontextmanager
async def _while_serving(services: Services, _: Application) -> AsyncGenerator[None, None]:
    """Run the clocks of the features while requests run; close the engine at the end."""
    async with running(services.features.all):
        yield
    await services.client.close()
