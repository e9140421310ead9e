"""Puts the application together: sign-in, the OpenAI surface, dialects, and what the list of features has."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

from fastapi import FastAPI

from prolepsis.control.web.context import Context
from prolepsis.control.web.feature import running
from prolepsis.control.web.intake import Intake, Uploads, body_limit
from prolepsis.control.web.routes import Application, Route
from prolepsis.engine.text.tokenizer import Tokenizer
from prolepsis.ops.console.routes import ConsoleParts, console_routes
from prolepsis.server.batches.routes import batch_routes
from prolepsis.server.batches.runner import BatchRunner
from prolepsis.server.dialects.anthropic.routes import messages_routes
from prolepsis.server.dialects.llamacpp.routes import llamacpp_routes
from prolepsis.server.dialects.models import model_routes
from prolepsis.server.dialects.ollama.routes import ollama_routes
from prolepsis.server.features import services_of
from prolepsis.server.front.browsers import MethodsMiddleware, OtherOriginsMiddleware, check_origins
from prolepsis.server.front.listener import check_exposure
from prolepsis.server.front.sign_in import AuthMiddleware, RouteRules, check_local
from prolepsis.server.front.tracing import RequestMiddleware
from prolepsis.server.openai.decisions import decision_routes
from prolepsis.server.openai.explain import explain_routes
from prolepsis.server.openai.routes import openai_routes
from prolepsis.server.services import Models, Services
from prolepsis.server.sources import Sources
from prolepsis.server.status.health import status_routes
from prolepsis.server.verify.routes import verify_routes


def build(
    context: Context, tokenizer: Tokenizer, sources: Sources | None = None, *, others: Sequence[Services] = ()
) -> FastAPI:
    """Return the application around a running engine; when it shuts down it closes the engine's client.

    It also answers requests for the models of `others`, the `state.services` of other applications of this process
    (`prolepsis.server.multi_model`). A server drains the application's `state.admission`. Raises `ConfigError` if the
    address needs keys and there are none, or if two models have the same name.
    """
    sources, config, metrics = sources or Sources(), context.config, context.metrics
    check_exposure(config, sources.keys)
    check_origins(config.allow_origin, keys_required=sources.keys.required)
    largest = [config.max_body_bytes or body_limit(context.client.info.max_model_len)]  # that one of the models takes
    largest += [other.intake.uploads.most_bytes for other in others]
    intake = Intake(Uploads(max(largest)), "fields" not in config.lenient)
    services = services_of(context, sources, tokenizer, intake)
    admission = services.admission
    models = Models([services, *(replace(other, intake=intake, responses=services.responses) for other in others)])
    runner = BatchRunner(context, models, sources.keys)
    routes = (
        *openai_routes(models),
        *decision_routes(models),
        *messages_routes(models),
        *ollama_routes(models),
        *llamacpp_routes(models),
        *verify_routes(models),
        *batch_routes(context, runner, models),
        *model_routes(models),
        *status_routes(
            context.client,
            admission,
            services.service_health,
            services.recorder,
            services.speculation.controls.kill_switch,
        ),
        *_feature_routes(context, services, models.names, lambda: app),
    )
    rules = RouteRules(routes)
    app = Application(routes, partial(_while_serving, services, runner), admission.metrics.refuse)
    app.state.admission = admission
    app.state.features = services.features
    app.state.intake = intake
    app.state.services = services
    app.add_middleware(
        AuthMiddleware, keys=sources.keys, config=config, metrics=admission.metrics, intake=intake, rules=rules
    )
    app.add_middleware(MethodsMiddleware, rules=rules)
    app.add_middleware(RequestMiddleware, metrics=metrics, tracing=services.tracing)
    if config.allow_origin:
        app.add_middleware(OtherOriginsMiddleware, origins=config.allow_origin)
    return app


def _feature_routes(
    context: Context, services: Services, names: Sequence[str], app: Callable[[], FastAPI]
) -> Sequence[Route]:
    client, gate, service = context.client, services.admission, services.service_health
    routes = (
        *(route for feature in services.features for route in feature.routes),
        *explain_routes(services.speculation.policies, lambda: client.info.default_sampling),
    )
    console = ConsoleParts(
        client=client,
        load=gate,
        store=context.store,
        keys=services.keys,
        check_local=check_local,
        observe=gate.metrics.refuse,
        grafana_url=context.config.grafana_url,
        models=names,
        document=lambda: app().openapi(),
        app=app,
        failing=lambda: service.detail,
        emit=context.emit,
    )
    return (*routes, *console_routes(routes, console))


@asynccontextmanager
async def _while_serving(services: Services, runner: BatchRunner, _: Application) -> AsyncGenerator[None, None]:
    async with running((*services.features, runner)):
        yield
    await services.client.close()
