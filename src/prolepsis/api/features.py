"""The one list of features, each built from what the server has."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from openfeature.provider import FeatureProvider
from prometheus_client import CollectorRegistry

from prolepsis.api.admission.controller import AdmissionController
from prolepsis.api.admission.metrics import AdmissionMetrics
from prolepsis.api.auth.key_changes import KeyChanges
from prolepsis.api.auth.keys import Keys
from prolepsis.api.auth.middleware import check_local
from prolepsis.api.idempotency import Idempotency
from prolepsis.api.metrics import MetricsFeature
from prolepsis.api.openai.sample import explain_routes
from prolepsis.api.output.delivery import DeliveryFeature
from prolepsis.api.output.pipeline import LoadedPolicy, OutputMetrics, OutputPolicies
from prolepsis.api.recorder import Recorder
from prolepsis.api.tokenizer import Tokenizer
from prolepsis.audit.anchors import AnchorFeature, default_file, places
from prolepsis.audit.log import AuditLog
from prolepsis.audit.requests import AuditFeature
from prolepsis.audit.waiting_runtime import WaitingActs
from prolepsis.console.recent import RecentFeature
from prolepsis.console.routes import ConsoleParts, console_routes
from prolepsis.console.traffic import TrafficFeature
from prolepsis.core.audit_event import Emit
from prolepsis.core.config import ServerConfig
from prolepsis.core.ended import Assignment
from prolepsis.core.plan import SpecPlan
from prolepsis.correctness.runtime import ReplayFeature, Report
from prolepsis.cost.prices import PriceFile
from prolepsis.cost.runtime import CostFeature
from prolepsis.drafts.heads import DraftHeads
from prolepsis.engine.client import EngineClient, weights_of
from prolepsis.policy.eligibility import Eligibility, StartTerms
from prolepsis.policy.eligibility_runtime import EligibilityFeature
from prolepsis.policy.eligibility_store import EligibilityStore
from prolepsis.policy.routes import policy_routes
from prolepsis.policy.runtime import Policies
from prolepsis.rollout.routes import rollout_routes
from prolepsis.rollout.runtime import Rollouts
from prolepsis.rollout.shadow_runtime import ShadowFeature
from prolepsis.rollout.silences import OFF, Silences
from prolepsis.safety.effective_plan import EffectivePlan
from prolepsis.safety.features import Safety, safety_features
from prolepsis.store import signing
from prolepsis.store.store import Store
from prolepsis.telemetry.metrics import Metrics
from prolepsis.tracing.feature import TracingFeature
from prolepsis.tracing.settings import described, destination
from prolepsis.web.feature import Feature
from prolepsis.web.routes import Route

REPLAYS = "replays"
"""The actor that engages the kill switch for replays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """What an operator configured besides settings; None or empty: the server does without.

    Without policies callers decide alone how they speculate; flags may turn that off. Without prices no cost is in
    money. Without a store no requests are recorded; its opener closes it.
    """

    policies: Policies | None = None
    rollouts: Rollouts | None = None
    flags: FeatureProvider | None = None
    prices: PriceFile | None = None
    store: Store | None = None
    output: Sequence[LoadedPolicy] = ()
    """Every answer passes these before its client sees it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """The features by name, for those that need a particular one, and `all` of them."""

    all: Sequence[Feature]
    admission: AdmissionController
    idempotency: Idempotency
    eligibility: EligibilityFeature
    output: OutputPolicies
    safety: Safety
    policies: Policies | None
    recorder: Recorder
    tracing: TracingFeature | None
    routes: Sequence[Route]


def features_of(
    config: ServerConfig,
    client: EngineClient,
    tokenizer: Tokenizer,
    metrics: Metrics,
    sources: Sources,
    *,
    base_plan: SpecPlan,
    keys: Keys,
) -> Features:
    """Return the features of a server; `base_plan` is the engine's plan before they change it."""
    store, policies, registry = sources.store, sources.policies, metrics.registry
    plan = EffectivePlan(base_plan, client.apply_plan)
    admission = AdmissionController(config, client, AdmissionMetrics(registry), base_plan, apply_plan=plan.shed)
    output = OutputPolicies(sources.output, OutputMetrics(registry))
    emit = AuditLog(store.writer if store else None).record
    safety = safety_features(
        config,
        client,
        plan,
        registry,
        flags=sources.flags,
        version_of=partial(weights_of, client),
        database=store.database if store is not None else None,
        emit=emit,
    )
    costs = CostFeature(registry, prices=sources.prices, memory=client.proposer_memory, store=store, emit=emit)
    eligibility = _eligibility(config, client, costs, registry, emit, policies=policies, store=store)
    recorder = Recorder(store, config.store_sample, lambda: costs.price.label if costs.price else None)
    tracing = _tracing(config, client, registry)
    replays = _replays(
        config,
        client,
        registry,
        admission,
        sources.rollouts,
        safety=safety,
        emit=emit,
        report=tracing.on_mismatch if tracing else None,
    )
    idempotency = Idempotency(config, registry, retried=recorder.retried)
    listed = (
        admission,
        idempotency,
        safety.controls,
        safety.kill_switch,
        safety.flags,
        KeyChanges(keys.file, emit) if keys.file is not None else None,
        recorder,
        _audit(config, client, tokenizer, store, replays, emit=emit),
        WaitingActs(store.database) if store is not None else None,
        _anchors(config, store, registry),
        costs,
        policies,
        sources.rollouts,
        _silences(config, sources.rollouts, registry, emit),
        eligibility,
        DraftHeads(client, emit=emit),
        ShadowFeature(lambda: client.info, policy=lambda: policies.version if policies else ""),
        replays,
        DeliveryFeature(registry, output),
        MetricsFeature(metrics, config, client, policy=lambda: policies.version if policies else ""),
        tracing,
        safety.breaker,
        safety.drift,
        TrafficFeature(client.health),
        RecentFeature(),
    )
    features = [feature for feature in listed if feature is not None]
    admin = (
        *(route for feature in features for route in feature.routes),
        *policy_routes(policies),
        *explain_routes(policies, lambda: client.info.default_sampling),
        *rollout_routes(sources.rollouts),
    )
    parts = ConsoleParts(
        client=client,
        store=store,
        keys=keys,
        check_local=check_local,
        observe=admission.metrics.refuse,
        emit=emit,
    )
    return Features(
        all=features,
        admission=admission,
        idempotency=idempotency,
        eligibility=eligibility,
        output=output,
        safety=safety,
        policies=policies,
        recorder=recorder,
        tracing=tracing,
        routes=(*admin, *console_routes(admin, parts)),
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


def _eligibility(
    config: ServerConfig,
    client: EngineClient,
    costs: CostFeature,
    registry: CollectorRegistry,
    emit: Emit,
    *,
    policies: Policies | None,
    store: Store | None,
) -> EligibilityFeature:
    eligibility = Eligibility(
        partial(weights_of, client),
        has_experts=client.info.num_experts > 0,
        price_per_s=lambda: costs.billed_per_second,
        start=StartTerms(num_drafts=config.start_drafts) if config.start_drafts else None,
    )
    kept = EligibilityStore(store.database) if store is not None else None
    in_use = lambda: policies.policy if policies is not None else None  # noqa: E731
    return EligibilityFeature(eligibility, registry, emit=emit, policy=in_use, store=kept)


def _tracing(config: ServerConfig, client: EngineClient, registry: CollectorRegistry) -> TracingFeature | None:
    """Return the traces, None if there are none; only then OpenTelemetry is imported."""
    receiver = destination(config, os.environ)
    if receiver is None:
        return None
    from prolepsis.tracing.otlp import OtlpSender

    sender = OtlpSender(receiver.endpoint, described(client.info))
    return TracingFeature(sender, registry, share=config.trace_sample)


def _silences(
    config: ServerConfig, rollouts: Rollouts | None, registry: CollectorRegistry, emit: Emit
) -> Silences | None:
    if rollouts is None or config.alertmanager == OFF:
        return None
    silences = Silences(config.alertmanager, registry, emit=emit)
    rollouts.listen(silences.on_change)
    return silences


def _anchors(config: ServerConfig, store: Store | None, registry: CollectorRegistry) -> AnchorFeature | None:
    if store is None:
        return None
    kept = places(config.audit_anchor, default_file(signing.key_file(config), store.database))
    return AnchorFeature(store.database, kept, registry, period_s=config.audit_anchor_s)


def _replays(
    config: ServerConfig,
    client: EngineClient,
    registry: CollectorRegistry,
    admission: AdmissionController,
    rollouts: Rollouts | None,
    *,
    safety: Safety,
    emit: Emit,
    report: Report | None,
) -> ReplayFeature:
    """Return the replays; their outcomes count for rollouts and may engage the kill switch."""
    kill_switch = safety.kill_switch

    def trip(reason: str) -> None:
        if not kill_switch.status.on:
            kill_switch.turn(on=True, by=REPLAYS, reason=reason)

    def count(assignment: Assignment, right: bool) -> None:
        if rollouts is not None:
            rollouts.observe(assignment, {"correctness": float(right)}, late=True)

    has_room = partial(admission.has_room, config.replay_beside)
    return ReplayFeature(client, config, registry, has_room, emit=emit, count=count, trip=trip, report=report)
