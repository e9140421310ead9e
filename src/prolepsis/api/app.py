"""The one place that puts the HTTP parts together."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial

from fastapi import FastAPI
from openfeature.provider import FeatureProvider
from prometheus_client import CollectorRegistry

from prolepsis.api.admission.controller import AdmissionController
from prolepsis.api.admission.metrics import AdmissionMetrics
from prolepsis.api.auth.keys import Keys
from prolepsis.api.auth.middleware import AuthMiddleware
from prolepsis.api.connections import check_exposure
from prolepsis.api.evidence import evidence_routes
from prolepsis.api.health import status_routes
from prolepsis.api.openai.routes import generation_routes
from prolepsis.api.openai.tokenization import tokenization_routes
from prolepsis.api.output.chain import LoadedPolicy, OutputMetrics, OutputPolicies
from prolepsis.api.output.delivery import DeliveryFeature
from prolepsis.api.recorder import Recorder
from prolepsis.api.room import Room
from prolepsis.api.tokenizer import Tokenizer
from prolepsis.api.tracing import RequestIdMiddleware, TraceMiddleware
from prolepsis.audit.log import AuditLog
from prolepsis.audit.requests import AuditFeature
from prolepsis.core.audit_event import Emit
from prolepsis.core.config import DRAFT_HEAD, ServerConfig
from prolepsis.core.ended import Assignment
from prolepsis.core.plan import SpecPlan
from prolepsis.correctness.runtime import ReplayFeature, ReplaySettings
from prolepsis.cost.prices import PriceFile
from prolepsis.cost.runtime import CostFeature
from prolepsis.engine.client import EngineClient
from prolepsis.policy.routes import policy_routes
from prolepsis.policy.runtime import Policies
from prolepsis.rollout.routes import rollout_routes
from prolepsis.rollout.runtime import Rollouts
from prolepsis.rollout.shadow_runtime import ShadowFeature
from prolepsis.safety.breaker import Breakers, BreakerSettings
from prolepsis.safety.breaker_runtime import BreakerFeature, breaker_file
from prolepsis.safety.drift import DriftStreams
from prolepsis.safety.drift_runtime import DriftFeature
from prolepsis.safety.effective_plan import EffectivePlan
from prolepsis.safety.flags_runtime import FlagsFeature
from prolepsis.safety.kill_switch import kill_file
from prolepsis.safety.kill_switch_runtime import KillSwitch
from prolepsis.store.store import Store
from prolepsis.telemetry.metrics import Metrics
from prolepsis.web.errors import install_error_handlers
from prolepsis.web.feature import Feature, contained_tick
from prolepsis.web.routes import Application, Route

REPLAYS = "replays"
"""Who turns the kill switch where replays do."""


@dataclass(frozen=True, slots=True)
class Gateway:
    """What decides who comes in and what is shed; without a key file, callers on this machine are the developer."""

    keys: Keys = field(default_factory=lambda: Keys(None))
    base_plan: SpecPlan = field(default_factory=SpecPlan)
    """The engine's plan while nothing is shed."""


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
    plan = EffectivePlan(gateway.base_plan, client.apply_plan)
    admission_metrics = AdmissionMetrics(metrics.registry)
    admission = AdmissionController(config, client, admission_metrics, gateway.base_plan, apply_plan=plan.shed)
    emit = AuditLog(store.writer if store else None).record
    version_of = partial(_version_of, client, policies)
    breaker = _breaker(config, client, plan, metrics.registry, emit)
    kill_switch = KillSwitch(kill_file(config.kill_file), lambda on: plan.kill(on=on), metrics.registry, emit=emit)
    flag_feature = FlagsFeature(flags, metrics.registry, on_kill=kill_switch.follow) if flags is not None else None
    drift = _drift(config, client, metrics.registry, breaker, version_of=version_of, emit=emit)
    costs = CostFeature(metrics.registry, prices=prices, memory=client.proposer_memory, store=store, emit=emit)
    recorder = Recorder(store, config.store_sample, lambda: costs.price.label if costs.price else None)
    delivery = DeliveryFeature(metrics.registry)
    shadow = ShadowFeature(partial(version_of, DRAFT_HEAD))
    replays = _replays(config, client, metrics.registry, admission, rollouts=rollouts, kill=kill_switch, emit=emit)
    audit = _audit(config, client, tokenizer, store, replays, emit=emit)
    listeners = (recorder, audit, costs, policies, rollouts, shadow, replays, delivery)
    found: Sequence[Feature | None] = (kill_switch, flag_feature, *listeners, breaker, drift)
    features: Sequence[Feature] = [feature for feature in found if feature is not None]
    room = Room(
        config=config,
        client=client,
        tokenizer=tokenizer,
        admission=admission,
        started=int(time.time()),
        kill_switch=kill_switch,
        flags=flag_feature,
        policies=policies,
        recorder=recorder,
        emit=emit,
        output=OutputPolicies(output, OutputMetrics(metrics.registry)),
        delivery=delivery,
        replays=replays,
        features=features,
    )
    info = client.info
    metrics.describe(model=info.model, forward=info.forward, exactness=info.exactness)
    own = [route for feature in features for route in feature.routes]
    routes = (*_routes(room, metrics), *rollout_routes(rollouts), *own)
    app = Application(routes, partial(_while_serving, room))
    app.state.admission = admission
    app.state.features = features
    app.state.admission_metrics = admission_metrics
    app.state.max_body_bytes = config.max_body_bytes
    install_error_handlers(app, admission_metrics.refuse)
    app.add_middleware(AuthMiddleware, keys=gateway.keys, config=config, metrics=admission_metrics, routes=routes)
    app.add_middleware(RequestIdMiddleware, metrics=metrics)
    app.add_middleware(TraceMiddleware)
    return app


@asynccontextmanager
async def _while_serving(room: Room, _: Application) -> AsyncGenerator[None, None]:
    """Run what looks at clocks and files beside the requests; close the engine at the end."""
    for feature in room.features:
        await contained_tick(feature)
    parts = [room.admission.run()]
    parts += [feature.run() for feature in room.features]
    running = [asyncio.create_task(part) for part in parts]
    yield
    for task in running:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    room.admission.end_waiting()
    for feature in room.features:
        await feature.close()
    await room.client.close()


def _routes(room: Room, metrics: Metrics) -> Sequence[Route]:
    return (
        *generation_routes(room),
        *tokenization_routes(room),
        *status_routes(room, metrics),
        *policy_routes(room.policies),
        *evidence_routes(room),
    )


def _audit(
    config: ServerConfig,
    client: EngineClient,
    tokenizer: Tokenizer,
    store: Store | None,
    replays: ReplayFeature,
    *,
    emit: Emit,
) -> AuditFeature:
    def decode(tokens: Sequence[int]) -> str:
        return tokenizer.decode(tokens, skip_special_tokens=False)

    sample, content = config.audit_sample, config.audit_content
    return AuditFeature(store, decode, lambda: client.info, replays.replay_now, emit, sample=sample, content=content)


def _version_of(client: EngineClient, policies: Policies | None, proposer: str) -> str:
    """Return what a proposer's figures belong to: a new head, model or policy is another version of it."""
    info = client.info
    weights = info.draft_head if proposer == DRAFT_HEAD and info.draft_head else info.fingerprint
    return f"{weights} {policies.version}" if policies else weights


def _drift(
    config: ServerConfig,
    client: EngineClient,
    registry: CollectorRegistry,
    breaker: BreakerFeature,
    *,
    version_of: Callable[[str], str],
    emit: Emit,
) -> DriftFeature:
    streams = DriftStreams() if config.drift == "on" else None
    on_cliff = partial(breaker.trip, reason="cliff") if config.drift_cliff == "open_breaker" else None
    return DriftFeature(streams, client.proposer_counts, version_of, registry, emit=emit, on_cliff=on_cliff)


def _breaker(
    config: ServerConfig, client: EngineClient, plan: EffectivePlan, registry: CollectorRegistry, emit: Emit
) -> BreakerFeature:
    least = config.breaker_min_acceptance
    settings = BreakerSettings(min_acceptance=least, acceptance_to_close=1.5 * least)
    breakers = Breakers(settings, metrics_only=config.breaker == "metrics_only")
    return BreakerFeature(
        None if config.breaker == "off" else breakers,
        client.proposer_counts,
        plan.disable,
        registry,
        file=breaker_file(config.breaker_file),
        proposers=lambda: client.info.proposers,
        emit=emit,
    )


def _replays(
    config: ServerConfig,
    client: EngineClient,
    registry: CollectorRegistry,
    admission: AdmissionController,
    *,
    rollouts: Rollouts | None,
    kill: KillSwitch,
    emit: Emit,
) -> ReplayFeature:
    """Return what decodes requests again; what it finds counts for rollouts, and may turn the kill switch on."""

    def trip(reason: str) -> None:
        if not kill.status.operator.on:
            kill.turn(on=True, by=REPLAYS, reason=reason)

    def count(assignment: Assignment, right: bool) -> None:
        if rollouts is not None:
            rollouts.observe(assignment, {"correctness": float(right)}, late=True)

    settings = ReplaySettings(config.replay_sample, config.replay_queue, config.replay_trip_after)
    has_room = partial(admission.has_room, config.replay_beside)
    return ReplayFeature(client, settings, registry, has_room, emit=emit, count=count, trip=trip)
