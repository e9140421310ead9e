"""The one list of features. A new one is a line of `FEATURES`, or of `services_of` if it needs another feature."""

from collections.abc import Callable, Sequence
from functools import partial

from prolepsis.control.audit import feature as audit
from prolepsis.control.controls import feature as controls
from prolepsis.control.correctness import runtime as correctness
from prolepsis.control.cost import runtime as cost
from prolepsis.control.drafts import heads
from prolepsis.control.health import feature as health
from prolepsis.control.policy import feature as policy
from prolepsis.control.policy.runtime import limits_by
from prolepsis.control.replicas import registry
from prolepsis.control.rollout import feature as rollout
from prolepsis.control.traffic import recent
from prolepsis.control.traffic.feature import TrafficFeature
from prolepsis.control.web.context import Context
from prolepsis.control.web.feature import Feature
from prolepsis.control.web.intake import Intake
from prolepsis.ops.console import alerts
from prolepsis.ops.tracing import start as tracing
from prolepsis.server import recorder, scopes, service_health
from prolepsis.server.admission import feature as admission
from prolepsis.server.auth import key_changes
from prolepsis.server.corpora import Corpora
from prolepsis.server.idempotency import Idempotency
from prolepsis.server.metrics import MetricsFeature
from prolepsis.server.openai import response_routes
from prolepsis.server.openai.facts import KNOWN
from prolepsis.server.output.delivery import DeliveryFeature
from prolepsis.server.output.pipeline import OutputMetrics, OutputPolicies
from prolepsis.server.rehearsal.traffic_recording import RecordingFeature
from prolepsis.server.services import Services
from prolepsis.server.sources import Sources
from prolepsis.server.tokenizer import Tokenizer

FEATURES: Sequence[Callable[[Context], Feature]] = (
    audit.waiting_acts,
    audit.anchors,
    heads.feature,
    alerts.feature,
    recent.feature,
    RecordingFeature,
)
"""The features that need no other."""


def services_of(context: Context, sources: Sources, tokenizer: Tokenizer, intake: Intake) -> Services:
    """Return the services of a server, with all features; they hear of a request's end in any order."""
    config, client, keys = context.config, context.client, sources.keys
    plan = controls.effective_plan(context)
    replicas = registry.feature(context, is_draining=lambda: gate.draining)
    buckets = admission.buckets(context, replicas)
    gate = admission.feature(context, plan, buckets)
    rollouts = rollout.feature(context)
    costs = cost.feature(context, sources.prices, lambda: operator_controls.kill_switch.status.killed)
    policies = policy.feature(
        context,
        rollouts,
        sources.policy,
        KNOWN,
        flags=sources.flags is not None,
        bills_time=costs.billed_per_second is not None,
    )
    operator_controls = controls.feature(
        context,
        plan,
        flags=sources.flags,
        flags_of_policy=lambda: policies.flag_names,
        known=scopes.known_scopes(client, keys, policies),
    )
    proposer_health = health.feature(
        context,
        plan,
        operator_controls.controls,
        price_per_s=lambda: costs.billed_per_second,
        conditions=lambda: policies.conditions,
    )
    traces = tracing.feature(context)
    replays = correctness.feature(
        context,
        operator_controls.kill_switch,
        partial(gate.has_room, config.replay_beside),
        count=rollouts.take_replay,
        report=traces.on_mismatch,
    )
    records, service = recorder.feature(context, costs), service_health.feature(context)
    idempotency = Idempotency(config, context.registry, retried=records.retried)
    stored = response_routes.feature(context)
    output = OutputPolicies(sources.output, OutputMetrics(context.registry))
    corpora = Corpora(context, tokenizer, intake)
    features = (
        *(replicas, service, gate, buckets, idempotency, stored, *operator_controls.features),
        *(records, costs, policies, rollouts, replays, traces),
        *(proposer_health, proposer_health.keeper(context.database)),
        key_changes.feature(context, keys),
        audit.feature(context, partial(tokenizer.decode, skip_special_tokens=False), replays.replay_now),
        rollout.silences(context, rollouts, replicas),
        rollout.shadow(context, policies),
        DeliveryFeature(context.registry, output),
        MetricsFeature(context.metrics, config, client, policy=lambda: policies.version, health=gate.health),
        TrafficFeature(gate.health),
        corpora,
        *(feature(context) for feature in FEATURES),
    )
    return Services(
        config=config,
        client=client,
        tokenizer=tokenizer,
        keys=keys,
        intake=intake,
        admission=gate,
        idempotency=idempotency,
        responses=stored,
        policies=policies,
        limits_of=limits_by(proposer_health.eligibility),
        controls=operator_controls,
        output=output,
        recorder=records,
        service_health=service,
        tracing=traces,
        corpora=corpora,
        features=features,
    )
