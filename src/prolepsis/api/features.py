"""The one list of features. A new one is a line of `FEATURES`, or of `services_of` if it needs another feature."""

from collections.abc import Callable, Sequence
from functools import partial

from prolepsis.api import recorder, scopes, service_health
from prolepsis.api.admission import feature as admission
from prolepsis.api.auth import key_changes
from prolepsis.api.auth.middleware import check_local
from prolepsis.api.idempotency import Idempotency
from prolepsis.api.metrics import MetricsFeature
from prolepsis.api.openai.explain import explain_routes
from prolepsis.api.openai.facts import KNOWN
from prolepsis.api.output.delivery import DeliveryFeature
from prolepsis.api.output.pipeline import OutputMetrics, OutputPolicies
from prolepsis.api.services import Services
from prolepsis.api.sources import Sources
from prolepsis.api.tokenizer import Tokenizer
from prolepsis.audit import anchors, requests, waiting_runtime
from prolepsis.console import alerts
from prolepsis.console.routes import ConsoleParts, console_routes
from prolepsis.controls.effective_plan import EffectivePlan
from prolepsis.controls.feature import operator_controls
from prolepsis.core.messages import ApplyPlan
from prolepsis.correctness import runtime as correctness
from prolepsis.cost import runtime as cost
from prolepsis.drafts import heads
from prolepsis.health.feature import health_feature
from prolepsis.policy import feature as policy
from prolepsis.policy.runtime import limits_by
from prolepsis.replicas import registry
from prolepsis.rollout import feature as rollout
from prolepsis.rollout.shadow_runtime import ShadowFeature
from prolepsis.tracing import start as tracing
from prolepsis.traffic import recent
from prolepsis.traffic.feature import TrafficFeature
from prolepsis.web.context import Context
from prolepsis.web.feature import Feature
from prolepsis.web.intake import Intake
from prolepsis.web.routes import Route

FEATURES: Sequence[Callable[[Context], Feature]] = (
    waiting_runtime.feature,
    anchors.feature,
    heads.feature,
    alerts.feature,
    recent.feature,
)
"""The features that need no other."""


def services_of(context: Context, sources: Sources, tokenizer: Tokenizer, intake: Intake) -> Services:
    """Return the services of a server, with all features; they hear of a request's end in any order."""
    config, client, keys = context.config, context.client, sources.keys
    plan = EffectivePlan(context.base_plan, lambda plan: client.send(ApplyPlan(plan)))
    replicas = registry.feature(context, is_draining=lambda: admitting.draining)
    buckets = admission.buckets(context, replicas)
    admitting = admission.feature(context, plan, buckets)
    rollouts, costs = rollout.feature(context), cost.feature(context, sources.prices)
    policies = policy.feature(
        context,
        rollouts,
        sources.policy,
        KNOWN,
        flags=sources.flags is not None,
        bills_time=costs.billed_per_second is not None,
    )
    controls = operator_controls(
        context,
        plan,
        flags=sources.flags,
        flags_of_policy=lambda: policies.flag_names,
        known=scopes.known_scopes(client, keys, policies),
    )
    health = health_feature(
        context,
        plan,
        controls.controls,
        price_per_s=lambda: costs.billed_per_second,
        conditions=lambda: policies.conditions,
    )
    traces = tracing.feature(context)
    replays = correctness.feature(
        context,
        controls.kill_switch,
        partial(admitting.has_room, config.replay_beside),
        count=rollouts.take_replay,
        report=traces.on_mismatch,
    )
    recording, failing = recorder.feature(context, costs), service_health.feature(context)
    idempotency = Idempotency(config, context.registry, retried=recording.retried)
    output = OutputPolicies(sources.output, OutputMetrics(context.registry))
    features = (
        *(replicas, failing, admitting, buckets, idempotency, *controls.features, recording, costs, policies, rollouts),
        *(health, health.keeper(context.database), replays, traces),
        key_changes.feature(context, keys),
        requests.feature(context, partial(tokenizer.decode, skip_special_tokens=False), replays.replay_now),
        rollout.silences(context, rollouts, replicas),
        ShadowFeature(lambda: client.info, policy=lambda: policies.version),
        DeliveryFeature(context.registry, output),
        MetricsFeature(context.metrics, config, client, policy=lambda: policies.version, health=admitting.health),
        TrafficFeature(admitting.health),
        *(feature(context) for feature in FEATURES),
    )
    return Services(
        config=config,
        client=client,
        tokenizer=tokenizer,
        keys=keys,
        intake=intake,
        admission=admitting,
        idempotency=idempotency,
        policies=policies,
        limits_of=limits_by(health.eligibility),
        controls=controls,
        output=output,
        recorder=recording,
        service_health=failing,
        tracing=traces,
        features=features,
    )


def routes_of(context: Context, services: Services) -> Sequence[Route]:
    """Return the routes of all features, and the console's, which call them."""
    client, admitting, failing = context.client, services.admission, services.service_health
    routes = (
        *(route for feature in services.features for route in feature.routes),
        *explain_routes(services.policies, lambda: client.info.default_sampling),
    )
    console = ConsoleParts(
        client=client,
        load=admitting,
        store=context.store,
        keys=services.keys,
        check_local=check_local,
        observe=admitting.metrics.refuse,
        grafana_url=context.config.grafana_url,
        failing=lambda: failing.detail,
        emit=context.emit,
    )
    return (*routes, *console_routes(routes, console))
