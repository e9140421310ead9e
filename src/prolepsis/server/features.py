"""The one list of features. A new one is a line of `FEATURES`, or of `services_of` if it needs another feature."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

from prolepsis.control.audit import feature as audit
from prolepsis.control.correctness import runtime as correctness
from prolepsis.control.drafts import heads
from prolepsis.control.health.routes import HealthPage
from prolepsis.control.learning.capture import CaptureFeature
from prolepsis.control.replicas import registry
from prolepsis.control.rollout import feature as rollout
from prolepsis.control.store.allowances import AllowanceTable
from prolepsis.control.traffic.feature import TrafficFeature
from prolepsis.control.traffic.recent import RecentFeature
from prolepsis.control.web.context import Context
from prolepsis.control.web.feature import Feature
from prolepsis.control.web.intake import Intake
from prolepsis.control.web.skipped import SkippedFeature
from prolepsis.core.extras import named
from prolepsis.engine.text.tokenizer import Tokenizer
from prolepsis.ops.console import alerts
from prolepsis.ops.tracing import start as tracing
from prolepsis.server.admission.controller import AdmissionController
from prolepsis.server.admission.leased_buckets import LeasedBuckets
from prolepsis.server.admission.metrics import AdmissionMetrics
from prolepsis.server.answering.idempotency import Idempotency
from prolepsis.server.corpora import Corpora
from prolepsis.server.front.keys import key_changes
from prolepsis.server.learning import learning
from prolepsis.server.openai import response_routes
from prolepsis.server.output.delivery import DeliveryFeature
from prolepsis.server.output.pipeline import OutputMetrics, OutputPolicies
from prolepsis.server.services import Services
from prolepsis.server.sources import Sources
from prolepsis.server.speculation_control import speculation_control
from prolepsis.server.status import recorder, service_health
from prolepsis.server.status.metrics import MetricsFeature
from prolepsis.server.writers import Writers

FEATURES: Sequence[Callable[[Context], Feature]] = (
    audit.waiting_acts,
    audit.anchors,
    alerts.feature,
    lambda context: cast(Feature, named("lab.rehearsal.traffic_recording:RecordingFeature")(context)),
    lambda context: SkippedFeature(context.skipped, context.registry),
)
"""The features that need no other."""


def services_of(context: Context, sources: Sources, tokenizer: Tokenizer, intake: Intake) -> Services:
    """Return the services of a server, with all features; they hear of a request's end in any order."""
    config, client, keys = context.config, context.client, sources.keys
    control = speculation_control(context, sources)
    replicas = registry.feature(context, is_draining=lambda: gate.draining)
    buckets = LeasedBuckets(AllowanceTable(context.database), lambda: replicas.num_sharing, context.monotonic)
    is_limited = bool(config.requests_per_minute or config.tokens_per_minute)
    gate = AdmissionController(
        config,
        client,
        AdmissionMetrics(context.registry),
        context.base_plan,
        context.monotonic,
        apply_plan=control.plan.shed,
        find_bucket=buckets.bucket if is_limited and context.database.is_kept else None,  # else this server's own
    )
    traces, recent = tracing.feature(context), RecentFeature(context.store)
    decode = partial(tokenizer.decode, skip_special_tokens=False)
    replays = correctness.feature(
        context,
        control.controls.kill_switch,
        partial(gate.has_room, config.limits.replay_beside),
        count=control.rollouts.take_replay,
        report=traces.on_mismatch,
        found=recent.on_mismatch,
        decode=decode,
    )
    records, service = recorder.feature(context, control.costs, control.policies), service_health.feature(context)
    idempotency = Idempotency(config, context.registry, retried=records.retried)
    stored = response_routes.feature(context, keys)
    output = OutputPolicies(sources.output, OutputMetrics(context.registry))
    corpora = Corpora(context, tokenizer, intake, lambda: control.policies.learning)
    writers = Writers(config.writers)
    swaps = heads.feature(context, partial(named("lab.measure.prompts:shipped_token_ids"), tokenizer))
    features: tuple[Feature, ...] = (
        *(replicas, service, gate, buckets, idempotency, stored, *control.features),
        *(records, replays, traces, recent, control.health.keeper(context.database, context.wall)),
        key_changes(context, keys),
        audit.feature(context, decode, replays.replay_now),
        CaptureFeature(
            context,
            partial(tokenizer.encode, add_special_tokens=False),
            decode,
            lambda: control.policies.learning,
            is_sure=lambda: control.policies.policy is not None and not control.policies.source.fault,
        ),
        rollout.silences(context, control.rollouts, replicas),
        rollout.shadow(context, control.policies),
        DeliveryFeature(context.registry, output),
        MetricsFeature(context.metrics, config, client, policy=lambda: control.policies.version, health=gate.health),
        TrafficFeature(gate.health, context.wall),
        corpora,
        writers,
        swaps,
        learning(context, control, swaps, replicas),
        cast(Feature, named("lab.drills.feature:Drills")(context, gate)),
        *(feature(context) for feature in FEATURES),
    )
    features = (*features, HealthPage(features))
    return Services(
        config=config,
        client=client,
        tokenizer=tokenizer,
        keys=keys,
        intake=intake,
        admission=gate,
        idempotency=idempotency,
        responses=stored,
        speculation=control,
        output=output,
        recorder=records,
        service_health=service,
        tracing=traces,
        corpora=corpora,
        writers=writers,
        features=features,
    )
