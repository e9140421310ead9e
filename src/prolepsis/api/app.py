"""Puts the application together: admission, sign-in, the OpenAI surface, and the list of features."""

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

from fastapi import FastAPI

from prolepsis.api.auth.middleware import AuthMiddleware
from prolepsis.api.connections import check_exposure
from prolepsis.api.features import Sources, features_of
from prolepsis.api.health import status_routes
from prolepsis.api.openai.routes import openai_routes
from prolepsis.api.services import Gateway, Models, Services
from prolepsis.api.tokenizer import Tokenizer
from prolepsis.api.tracing import RequestIdMiddleware, TraceMiddleware
from prolepsis.api.verify.routes import verify_routes
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
    others: Sequence[Services] = (),
) -> FastAPI:
    """Return the application around a running engine; when it shuts down it closes `client`.

    It also answers requests for the models of `others`, applications that run beside it (`prolepsis.api.beside`), whose
    `state.services` they are. A server drains the application's `state.admission`. Raises `ConfigError` if the address
    needs keys and there are none, or two models have one name.
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
    limits = [config.max_body_bytes or body_limit(client.info.max_model_len)]
    limits += [one.intake.uploads.most_bytes for one in others]
    intake = Intake(Uploads(max(limits)))
    services = Services(
        config=config, client=client, tokenizer=tokenizer, started=int(time.time()), features=features, intake=intake
    )
    admission = features.admission
    models = Models([services, *(replace(one, intake=intake) for one in others)])
    routes = (*openai_routes(models), *verify_routes(models), *status_routes(models, services), *features.routes)
    app = Application(routes, partial(_while_serving, services), admission.metrics.refuse)
    app.state.admission = admission
    app.state.features = features.all
    app.state.intake = intake
    app.state.services = services
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
