"""The one list of features, each built from what the server has."""

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING
from uuid import uuid4

from openfeature.provider import FeatureProvider
from prometheus_client import CollectorRegistry

from prolepsis.api.admission.controller import AdmissionController
from prolepsis.api.admission.leased_buckets import LeasedBuckets
from prolepsis.api.admission.metrics import AdmissionMetrics
from prolepsis.api.auth.key_changes import KeyChanges
from prolepsis.api.auth.keys import Keys
from prolepsis.api.auth.middleware import check_local
from prolepsis.api.idempotency import Idempotency
from prolepsis.api.metrics import MetricsFeature
from prolepsis.api.openai.explain import explain_routes
from prolepsis.api.openai.facts import KNOWN
from prolepsis.api.output.delivery import DeliveryFeature
from prolepsis.api.output.pipeline import LoadedPolicy, OutputMetrics, OutputPolicies
from prolepsis.api.recorder import Recorder
from prolepsis.api.service_health import ServiceHealth
from prolepsis.api.tokenizer import Tokenizer
from prolepsis.audit.anchors import AnchorFeature, default_file, places
from prolepsis.audit.log import AuditLog
from prolepsis.audit.requests import AuditFeature
from prolepsis.audit.waiting_runtime import WaitingActs
from prolepsis.console.alerts import AlertsFeature
from prolepsis.console.recent import RecentFeature
from prolepsis.console.routes import ConsoleParts, console_routes
from prolepsis.console.traffic import TrafficFeature
from prolepsis.controls.effective_plan import EffectivePlan
from prolepsis.controls.feature import OperatorControls, operator_controls
from prolepsis.controls.flag_file import FlagFile
from prolepsis.controls.known_scopes import KnownScopes
from prolepsis.core.audit_event import Emit
from prolepsis.core.config import ServerConfig
from prolepsis.core.ended import Assignment
from prolepsis.core.facts import RequestFacts, traffic_class_of
from prolepsis.core.messages import ApplyPlan
from prolepsis.core.plan import SpecPlan
from prolepsis.correctness.runtime import ReplayFeature, Report
from prolepsis.cost.prices import PriceFile
from prolepsis.cost.runtime import CostFeature
from prolepsis.drafts.heads import DraftHeads
from prolepsis.engine.client import EngineClient
from prolepsis.health.feature import HealthFeature, health_feature
from prolepsis.health.learned import LearnedStore
from prolepsis.policy.routes import policy_routes
from prolepsis.policy.runtime import LimitsOf, Policies, limits_by
from prolepsis.replicas.registry import ReplicaRegistry
from prolepsis.rollout.deployment import deployment_id, instances_of
from prolepsis.rollout.routes import rollout_routes
from prolepsis.rollout.runtime import Rollouts
from prolepsis.rollout.shadow_runtime import ShadowFeature
from prolepsis.rollout.silences import OFF, Silences
from prolepsis.store import signing
from prolepsis.store.allowances import AllowanceTable
from prolepsis.store.controls import ControlTable
from prolepsis.store.database import Database
from prolepsis.store.learned import LearnedTable
from prolepsis.store.replicas import ReplicaTable
from prolepsis.store.store import Store
from prolepsis.telemetry.metrics import Metrics
from prolepsis.tracing.settings import destination
from prolepsis.web.feature import Feature
from prolepsis.web.routes import Route

if TYPE_CHECKING:
    from prolepsis.tracing.feature import TracingFeature

_ROUTES = tuple(KNOWN.route or ())
_NAMED_ROUTES = tuple(traffic_class_of(RequestFacts(route=route)).partition("/")[0] for route in _ROUTES)
"""Routes as traffic classes name them."""
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
    flags: FlagFile | FeatureProvider | None = None
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
    limits_of: LimitsOf
    output: OutputPolicies
    controls: OperatorControls
    policies: Policies | None
    recorder: Recorder
    service_health: ServiceHealth
    tracing: "TracingFeature | None"
    routes: Sequence[Route]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Given:
    """The parts that features are built from."""

    config: ServerConfig
    client: EngineClient
    tokenizer: Tokenizer
    metrics: Metrics
    sources: Sources
    keys: Keys
    emit: Emit

    @property
    def registry(self) -> CollectorRegistry:
        return self.metrics.registry

    @property
    def store(self) -> Store | None:
        return self.sources.store

    @property
    def database(self) -> Database | None:
        return self.sources.store.database if self.sources.store is not None else None

    @property
    def policy_version(self) -> str:
        return self.sources.policies.version if self.sources.policies is not None else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shared:
    """The features that others are built from."""

    admission: AdmissionController
    buckets: LeasedBuckets | None
    replicas: ReplicaRegistry
    idempotency: Idempotency
    output: OutputPolicies
    controls: OperatorControls
    costs: CostFeature
    health: HealthFeature
    recorder: Recorder
    service_health: ServiceHealth
    tracing: "TracingFeature | None"
    replays: ReplayFeature


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
    emit = AuditLog(sources.store.writer if sources.store is not None else None).record
    given = _Given(
        config=config, client=client, tokenizer=tokenizer, metrics=metrics, sources=sources, keys=keys, emit=emit
    )
    shared = _shared(given, base_plan)
    features = [feature for feature in _listed(given, shared) if feature is not None]
    return Features(
        all=features,
        admission=shared.admission,
        idempotency=shared.idempotency,
        limits_of=limits_by(shared.health.eligibility),
        output=shared.output,
        controls=shared.controls,
        policies=sources.policies,
        recorder=shared.recorder,
        service_health=shared.service_health,
        tracing=shared.tracing,
        routes=_routes(given, features, shared),
    )


def _listed(given: _Given, shared: _Shared) -> Sequence[Feature | None]:
    """Return every feature, in the order in which they hear of a request's end; None: the server has none."""
    sources, client, emit = given.sources, given.client, given.emit
    return (
        shared.replicas,
        shared.service_health,
        shared.admission,
        shared.buckets,
        shared.idempotency,
        shared.controls.controls,
        shared.controls.kill_switch,
        shared.controls.flags,
        KeyChanges(given.keys.file, emit) if given.keys.file is not None else None,
        shared.recorder,
        _audit(given, shared.replays),
        WaitingActs(given.database) if given.database is not None else None,
        _anchors(given),
        shared.costs,
        sources.policies,
        sources.rollouts,
        _silences(given, shared.replicas),
        shared.health,
        _keeper(given, shared.health),
        DraftHeads(client, emit=emit),
        ShadowFeature(lambda: client.info, policy=lambda: given.policy_version),
        shared.replays,
        DeliveryFeature(given.registry, shared.output),
        MetricsFeature(
            given.metrics,
            given.config,
            client,
            policy=lambda: given.policy_version,
            health=shared.admission.health,
        ),
        shared.tracing,
        TrafficFeature(shared.admission.health),
        AlertsFeature(given.config.alertmanager if given.config.alertmanager != OFF else None),
        RecentFeature(),
    )


def _shared(given: _Given, base_plan: SpecPlan) -> _Shared:
    config, client, registry, sources = given.config, given.client, given.registry, given.sources
    plan = EffectivePlan(base_plan, lambda plan: client.send(ApplyPlan(plan)))
    table = ReplicaTable(given.database) if given.database is not None else None
    replicas = ReplicaRegistry(table, client, config, registry, is_draining=lambda: admission.draining)
    buckets = _buckets(given, replicas)
    admission = AdmissionController(
        config,
        client,
        AdmissionMetrics(registry),
        base_plan,
        apply_plan=plan.shed,
        find_bucket=buckets.bucket if buckets is not None else None,
    )
    controls = _controls(given, plan)
    costs = CostFeature(
        registry, prices=sources.prices, memory=client.proposer_memory, store=given.store, emit=given.emit
    )
    recorder = Recorder(given.store, config.store_sample, lambda: costs.price.label if costs.price else None)
    tracing = _tracing(given)
    return _Shared(
        admission=admission,
        buckets=buckets,
        replicas=replicas,
        idempotency=Idempotency(config, registry, retried=recorder.retried),
        output=OutputPolicies(sources.output, OutputMetrics(registry)),
        controls=controls,
        costs=costs,
        health=_health(given, plan, controls, costs),
        recorder=recorder,
        service_health=ServiceHealth(client, registry),
        tracing=tracing,
        replays=_replays(given, admission, controls, tracing.on_mismatch if tracing is not None else None),
    )


def _routes(given: _Given, features: Sequence[Feature], shared: _Shared) -> Sequence[Route]:
    """Return the admin routes, and the console's, which call them."""
    client, sources = given.client, given.sources
    admin = (
        *(route for feature in features for route in feature.routes),
        *policy_routes(sources.policies),
        *explain_routes(sources.policies, lambda: client.info.default_sampling),
        *rollout_routes(sources.rollouts),
    )
    parts = ConsoleParts(
        client=client,
        load=shared.admission,
        store=given.store,
        keys=given.keys,
        check_local=check_local,
        observe=shared.admission.metrics.refuse,
        grafana_url=given.config.grafana_url,
        failing=lambda: shared.service_health.detail,
        emit=given.emit,
    )
    return (*admin, *console_routes(admin, parts))


def _controls(given: _Given, plan: EffectivePlan) -> OperatorControls:
    policies = given.sources.policies
    return operator_controls(
        given.config,
        plan,
        given.registry,
        flags=given.sources.flags,
        flags_of_policy=lambda: policies.flag_names if policies is not None else (),
        known=_known_scopes(given),
        database=given.database,
        emit=given.emit,
    )


def _known_scopes(given: _Given) -> KnownScopes:
    """Return what has a scope of the kill switch now, by the policy in use, the keys and the engine."""
    keys, policies = given.keys, given.sources.policies
    rules = lambda: policies.rule_names if policies is not None else ()  # noqa: E731
    classes = lambda: {f"{named}/{tier}" for named in _NAMED_ROUTES for tier in keys.tiers}  # noqa: E731
    return KnownScopes(
        names={
            "route": lambda: _ROUTES,
            "rule": rules,
            "tenant": lambda: keys.tenants,
            "traffic_class": classes,
            "proposer": lambda: given.client.info.proposers,
        }
    )


def _buckets(given: _Given, replicas: ReplicaRegistry) -> LeasedBuckets | None:
    """Return the buckets of limits that hold over all replicas; None where nothing is limited or nothing shared."""
    is_limited = given.config.requests_per_minute or given.config.tokens_per_minute
    if given.database is None or not is_limited:
        return None
    return LeasedBuckets(AllowanceTable(given.database), lambda: replicas.num_sharing)


def _audit(given: _Given, replays: ReplayFeature) -> AuditFeature:
    def decode(tokens: Sequence[int]) -> str:
        return given.tokenizer.decode(tokens, skip_special_tokens=False)

    return AuditFeature(
        given.store,
        decode,
        lambda: given.client.info,
        replays.replay_now,
        given.emit,
        sample=given.config.audit_sample,
        content=given.config.audit_content,
    )


def _health(given: _Given, plan: EffectivePlan, controls: OperatorControls, costs: CostFeature) -> HealthFeature:
    policies = given.sources.policies
    return health_feature(
        given.config,
        given.client,
        plan,
        given.registry,
        controls=controls.controls,
        price_per_s=lambda: costs.billed_per_second,
        conditions=lambda: policies.conditions if policies is not None else ("", ()),
        emit=given.emit,
    )


def _keeper(given: _Given, health: HealthFeature) -> Feature | None:
    """Return what keeps in the store what health has learned; without a store that ends with the server."""
    return health.keeper(LearnedStore(LearnedTable(given.database))) if given.database is not None else None


def _tracing(given: _Given) -> "TracingFeature | None":
    """Return the traces, None if there are none; only then OpenTelemetry is imported."""
    receiver = destination(given.config, os.environ)
    if receiver is None:
        return None
    from prolepsis.tracing.feature import TracingFeature
    from prolepsis.tracing.otlp import OtlpExporter

    exporter = OtlpExporter(receiver.endpoint, given.client.info, given.registry)
    return TracingFeature(exporter, given.registry, share=given.config.trace_sample)


def _silences(given: _Given, replicas: ReplicaRegistry) -> Silences | None:
    rollouts, database = given.sources.rollouts, given.database
    if rollouts is None or given.config.alertmanager == OFF:
        return None
    alone = uuid4().hex[:12]  # without a store no other server shares the rollouts

    def labels() -> Mapping[str, Collection[str]]:
        instances = instances_of(replicas.addresses)
        return {"model": [given.client.info.model], "region": [given.config.region], "instance": instances}

    silences = Silences(
        given.config.alertmanager,
        given.registry,
        emit=given.emit,
        deployment=partial(deployment_id, ControlTable(database)) if database is not None else lambda: alone,
        labels=labels,
    )
    rollouts.listen(silences.on_change)
    return silences


def _anchors(given: _Given) -> AnchorFeature | None:
    if given.database is None:
        return None
    kept = places(given.config.audit_anchor, default_file(signing.key_file(given.config), given.database))
    return AnchorFeature(given.database, kept, given.registry, period_s=given.config.audit_anchor_s)


def _replays(
    given: _Given, admission: AdmissionController, controls: OperatorControls, report: Report | None
) -> ReplayFeature:
    """Return the replays; their outcomes count for rollouts and may engage the kill switch."""
    kill_switch, rollouts = controls.kill_switch, given.sources.rollouts

    def trip(reason: str) -> None:
        if not kill_switch.status.on:
            kill_switch.turn(on=True, by=REPLAYS, reason=reason)

    def count(assignment: Assignment, right: bool) -> None:
        if rollouts is not None:
            rollouts.observe(assignment, {"correctness": float(right)}, late=True)

    has_room = partial(admission.has_room, given.config.replay_beside)
    return ReplayFeature(
        given.client,
        given.config,
        given.registry,
        has_room,
        emit=given.emit,
        count=count,
        trip=trip,
        report=report,
    )
