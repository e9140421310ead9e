"""Health of proposers while serving: one reading of what the engine counts and of the requests that end, four judges.

Of each proposer in each traffic class: `open` (its breaker), `drifted`, `collapsed` (its benefit is gone), `eligible`.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial

import structlog
from prometheus_client import CollectorRegistry

from prolepsis.control.controls.controls import Controls
from prolepsis.control.controls.effective_plan import EffectivePlan
from prolepsis.control.health.breaker import Breakers, BreakerSettings
from prolepsis.control.health.breaker_runtime import BreakerRuntime
from prolepsis.control.health.drift import DriftStreams, Key
from prolepsis.control.health.drift_runtime import DriftRuntime
from prolepsis.control.health.eligibility import Conditions, Eligibility, Judged, StartTerms
from prolepsis.control.health.learned import Keeper, Learned
from prolepsis.control.health.priors import AcceptancePriors
from prolepsis.control.health.quality import QualityWatch
from prolepsis.control.health.routes import health_routes
from prolepsis.control.store.database import Database
from prolepsis.control.store.learned import LearnedTable
from prolepsis.control.web.context import Context
from prolepsis.control.web.feature import Feature
from prolepsis.core.audit_event import SERVER, AuditEvent, Emit
from prolepsis.core.ended import RequestEnded
from prolepsis.core.engine_client import weights_of
from prolepsis.core.reasons import Judge
from prolepsis.core.requests import GenerateRequest
from prolepsis.core.stats import Quality, RequestStats, TrafficClassCounts
from prolepsis.core.telemetry.declare import counter

log = structlog.get_logger(__name__)


class HealthFeature(Feature):
    """Belongs to one event loop."""

    name = "health"
    period_s = 0.2

    def __init__(
        self,
        counts: Callable[[], Iterable[TrafficClassCounts]],
        breakers: BreakerRuntime,
        drift: DriftRuntime,
        eligibility: Eligibility,
        registry: CollectorRegistry,
        *,
        priors: AcceptancePriors,
        proposers: Callable[[], Sequence[str]] = tuple,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`counts`: what the engine counted since its start; `proposers`: of the engine, which begins from `priors`."""
        self.breakers = breakers
        self.drift = drift
        self.eligibility = eligibility
        self.routes = health_routes(breakers, drift, proposers)
        self.health_parts = {"breakers": breakers.shown, "drift": drift.shown, "eligibility": eligibility.shown}
        self._counts = counts
        self._quality = QualityWatch()
        text = "Answers whose acceptance is far from their traffic class's norm: looping, copied or garbled"
        self._alarms = counter(registry, "quality_alarms", text, "kind", "tier", most=15)
        self._priors = priors
        self._clock = clock

    def against(self) -> list[tuple[Key, Judge, str]]:
        """Return what is held against proposers in traffic classes: by which judge, and what it says."""
        breakers, streams, gone = self.breakers.breakers.all, self.drift.streams.all, self.drift.gone
        keys = breakers.keys() | streams.keys() | gone.keys() | {place[:2] for place in self.eligibility.figures}
        opened = ((key, one.state.replace("_", " ")) for key, one in breakers.items() if one.state != "closed")
        return sorted(
            [
                *((key, "breaker", state) for key, state in opened),
                *((key, "drift", one.status) for key, one in streams.items() if one.status in ("drifted", "cliff")),
                *((key, "benefit", "gone") for key, is_gone in gone.items() if is_gone),
                *((key, "eligibility", "not met") for key in keys if self.eligibility.met(*key) is False),
            ]
        )

    async def tick(self) -> None:
        """Process what the engine counted, and follow the policy; cheap if nothing changed."""
        counts = tuple(self._counts())
        observe = (lambda: self.breakers.observe(counts), lambda: self.drift.observe(counts))
        _each(*observe, self.eligibility.follow_policy, self._priors.follow)

    def on_request_end(self, ended: RequestEnded) -> None:
        """Process what a request's drafts showed."""
        _each(lambda: self.drift.see(ended), lambda: self.eligibility.see(ended), lambda: self._report(ended))

    def judge_answer(
        self, request: GenerateRequest, stats: RequestStats, samples: Mapping[int, Sequence[int]]
    ) -> Quality:
        """Judge an answer that has ended, as `QualityWatch.observe` does."""
        try:
            return self._quality.observe(request, stats, samples)
        except Exception:  # contained: a judge that fails fails no answer
            log.exception("judge_failed")
            return "unjudged"

    def _report(self, ended: RequestEnded) -> None:
        """Report answers that are looping, copied or garbled."""
        for prompt in ended.prompts:
            quality, traffic_class = prompt.stats.quality, prompt.request.traffic_class
            if quality not in ("unjudged", "ordinary"):
                self._alarms.labels(quality, ended.about.tier).inc()
                answer_id = ended.about.answer_id
                log.warning("quality_alarm", quality=quality, traffic_class=traffic_class, answer_id=answer_id)

    def keeper(self, database: Database, now: Callable[[], float]) -> Keeper:
        """Return the feature that keeps what is learned in the store; `now`: Unix time."""
        return Keeper(LearnedTable(database, now), restore=self._restore, learned=self._learned, clock=self._clock)

    def _restore(self, learned: Learned) -> None:
        if self.drift.enabled:
            self.drift.streams.restore(learned.streams, self._clock())
            self.drift.benefits.restore(learned.benefits)
        self._priors.stored = learned.acceptance
        self.eligibility.restore(learned.figures, learned.conditions)
        self.eligibility.follow_policy(again=True)

    def _learned(self) -> Learned:
        streams, benefits = self.drift.streams.states(), self.drift.benefits.states()
        own = self.eligibility
        return Learned(streams, benefits, own.learned(), own.judged, self._priors.measured)


def _each(*judges: Callable[[], None]) -> None:
    for judge in judges:
        try:
            judge()
        except Exception:  # contained: a judge that fails silences no other
            log.exception("judge_failed")


def eligibility_reporter(registry: CollectorRegistry, emit: Emit) -> Callable[[Judged], None]:
    """Return what tells log, metrics and audit log of a traffic class that became eligible, or lost it."""
    text, by = "Traffic classes that became eligible, or lost it", ("traffic_class", "condition", "eligible")
    changes = counter(registry, "eligibility_changes", text, *by)

    def report(judged: Judged) -> None:
        (log.info if judged.eligible else log.warning)("eligibility_changed", **asdict(judged))
        changes.labels(judged.traffic_class, judged.condition, str(judged.eligible).lower()).inc()
        action = f"eligibility.{'gained' if judged.eligible else 'lost'}"
        emit(AuditEvent(actor=SERVER, action=action, subject=judged.traffic_class, after=asdict(judged)))

    return report


def feature(
    context: Context,
    plan: EffectivePlan,
    controls: Controls,
    *,
    price_per_s: Callable[[], float | None],
    conditions: Callable[[], tuple[str, Conditions]],
) -> HealthFeature:
    """Return the feature for an engine; `price_per_s` and `conditions` as `Eligibility` takes them."""
    config, client, registry, emit = context.config, context.client, context.registry, context.emit
    version_of, least = partial(weights_of, client), config.limits.breaker_min_acceptance
    settings = BreakerSettings(min_acceptance=least, acceptance_to_close=1.5 * least)
    breaker = BreakerRuntime(
        Breakers(settings, metrics_only=config.breaker == "metrics_only"),
        plan.disable,
        registry,
        controls=controls,
        enabled=config.breaker != "off",
        emit=emit,
        clock=context.monotonic,
        now=context.wall,
    )
    on_cliff = partial(breaker.trip, reason="cliff") if config.drift == "open_breaker" else None
    eligibility = Eligibility(
        version_of,
        has_experts=client.info.num_experts > 0,
        price_per_s=price_per_s,
        start=StartTerms(num_drafts=config.limits.start_drafts) if config.limits.start_drafts else None,
        conditions=conditions,
        changed=eligibility_reporter(registry, emit),
    )
    return HealthFeature(
        client.proposer_counts,
        breaker,
        DriftRuntime(
            DriftStreams(version_of),
            registry,
            enabled=config.drift == "on",
            emit=emit,
            on_cliff=on_cliff,
            clock=context.monotonic,
        ),
        eligibility,
        registry,
        priors=AcceptancePriors(client, context.metrics.learned),
        proposers=lambda: client.info.proposers,
        clock=context.monotonic,
    )
