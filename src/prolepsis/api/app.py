"""Puts the application together: admission, sign-in, the OpenAI surface, and the list of features."""

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from functools import partial

from fastapi import FastAPI
from openfeature.provider import FeatureProvider

from prolepsis.api.admission.controller import AdmissionController
from prolepsis.api.admission.metrics import AdmissionMetrics
from prolepsis.api.auth.middleware import AuthMiddleware
from prolepsis.api.connections import check_exposure
from prolepsis.api.features import Sources, features_of
from prolepsis.api.health import status_routes
from prolepsis.api.openai.routes import openai_routes
from prolepsis.api.output.pipeline import LoadedPolicy, OutputMetrics, OutputPolicies
from prolepsis.api.services import Gateway, Services
from prolepsis.api.tokenizer import Tokenizer
from prolepsis.api.tracing import RequestIdMiddleware, TraceMiddleware
from prolepsis.core.config import ServerConfig
from prolepsis.cost.prices import PriceFile
from prolepsis.engine.client import EngineClient
from prolepsis.policy.runtime import Policies
from prolepsis.rollout.runtime import Rollouts
from prolepsis.safety.effective_plan import EffectivePlan
from prolepsis.store.store import Store
from prolepsis.telemetry.metrics import Metrics
from prolepsis.web.feature import running
from prolepsis.web.routes import Application


def build(
    config: ServerConfig,
    client: EngineClient,
    tokenizer: Tokenizer,
    metrics: Metrics,
    gateway: Gateway | None = None,
    *,
    policies: Policies | None = None,
    rollouts: Rollouts | None = None,
    flags: FeatureProvider | None = None,
    prices: PriceFile | None = None,
    store: Store | None = None,
    output: Sequence[LoadedPolicy] = (),
) -> FastAPI:
    """Return the application around a running engine; when it shuts down it closes `client`.

    Without `policies` callers decide alone how they speculate; `flags` may turn that off. Without `prices` no cost is
    in money. Without `store` no requests are recorded; its opener closes it. Every answer passes `output` before its
    client sees it. A server drains the application's `state.admission` and counts the connections that it refuses in
    `state.admission_metrics`. Raises `ConfigError` if the address needs keys and there are none.
    """
    gateway = gateway or Gateway()
    check_exposure(config, gateway.keys)
    admission_metrics = AdmissionMetrics(metrics.registry)
    plan = EffectivePlan(gateway.base_plan, client.apply_plan)
    admission = AdmissionController(config, client, admission_metrics, gateway.base_plan, apply_plan=plan.shed)
    sources = Sources(policies=policies, rollouts=rollouts, flags=flags, prices=prices, store=store)
    filters = OutputPolicies(output, OutputMetrics(metrics.registry))
    features = features_of(config, client, tokenizer, metrics, sources, plan=plan, admission=admission, output=filters)
    services = Services(
        config=config,
        client=client,
        tokenizer=tokenizer,
        admission=admission,
        started=int(time.time()),
        output=filters,
        features=features,
    )
    info = client.info
    metrics.describe(model=info.model, forward=info.forward, exactness=info.exactness)
    own = (*openai_routes(services), *status_routes(services, metrics))
    routes = (*own, *features.routes)
    app = Application(routes, partial(_while_serving, services), admission_metrics.refuse)
    app.state.admission = admission
    app.state.features = features.all
    app.state.admission_metrics = admission_metrics
    app.state.max_body_bytes = config.max_body_bytes
    app.add_middleware(AuthMiddleware, keys=gateway.keys, config=config, metrics=admission_metrics, routes=routes)
    app.add_middleware(RequestIdMiddleware, metrics=metrics)
    app.add_middleware(TraceMiddleware)
    return app


@asynccontextmanager
async def _while_serving(services: Services, _: Application) -> AsyncGenerator[None, None]:
    """Run admission and the clocks of the features while requests are served; close the engine at the end."""
    admission = services.admission
    async with running(services.features.all, [admission.run()]):
        yield
        admission.end_waiting()
    await services.client.close()
