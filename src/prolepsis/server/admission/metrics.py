"""Counters and gauges of admission; label values come from fixed sets, never from callers."""

from typing import get_args

from prometheus_client import CollectorRegistry

from prolepsis.control.web.refusals import Reason, Refused
from prolepsis.core.telemetry.declare import counter, gauge, histogram

_WAIT_BUCKETS = (0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


class AdmissionMetrics:
    """Requests that wait or run, and those that were refused, by reason."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.refused = counter(registry, "admission_refused", "Requests and connections refused", "reason")
        for reason in get_args(Reason):
            self.refused.labels(reason)
        self.queued = gauge(registry, "admission_queued_requests", "Requests that wait for admission", "tier")
        text = "Age of the oldest request that waits here, or in the engine for its first pass, and is not batch work"
        self.queue_age = gauge(registry, "admission_queue_age_seconds", text)
        text = "Samples admitted to the engine that have not ended"
        self.in_engine = gauge(registry, "admission_samples_in_engine", text)
        text = "Time from arrival to admission"
        self.wait = histogram(registry, "admission_wait_seconds", text, "tier", buckets=_WAIT_BUCKETS)
        self.level = gauge(registry, "shed_level", "Level of load shedding: 0 calm to 4 low tiers refused")
        self.level_changes = counter(registry, "shed_changes", "Changes of the level", "level", "direction")
        text = "Deterministic requests looked up in the response cache"
        self.cache = counter(registry, "response_cache_requests", text, "result")
        self.cache_bytes = gauge(registry, "response_cache_bytes", "Estimated size of the stored answers")

    def refuse(self, error: Exception) -> None:
        """Count `error` if it is a refusal, once however many places see it pass."""
        if isinstance(error, Refused) and not error.counted:
            error.counted = True
            self.refused.labels(error.reason).inc()
