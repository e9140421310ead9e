"""Counters and gauges of admission; label values come from fixed sets, never from callers."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from prolepsis.web.refusals import Refused

_WAIT_BUCKETS = (0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


class AdmissionMetrics:
    """Requests that wait or run, and those that were refused, by reason."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"prolepsis_{name}", text, labels, registry=registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"prolepsis_{name}", text, labels, registry=registry)

        self.refused = counter("admission_refused", "Requests refused, by reason", "reason")
        self.queued = gauge("admission_queued_requests", "Requests that wait before the engine", "tier")
        self.queue_age = gauge(
            "admission_queue_age_seconds", "Age of the oldest waiting request that is not batch work"
        )
        self.in_engine = gauge("admission_samples_in_engine", "Samples admitted to the engine that have not ended")
        self.wait = Histogram(
            "prolepsis_admission_wait_seconds",
            "Time before the engine",
            ["tier"],
            buckets=_WAIT_BUCKETS,
            registry=registry,
        )
        self.level = gauge("shed_level", "Level of load shedding: 0 calm to 4 low tiers refused")
        self.level_changes = counter("shed_changes", "Changes of the level", "level", "direction")
        self.cache = counter(
            "response_cache_requests", "Deterministic requests looked up in the response cache", "result"
        )
        self.cache_bytes = gauge("response_cache_bytes", "Estimated size of the stored answers")

    def refuse(self, error: Exception) -> None:
        """Count `error` if it is a refusal, once however many places see it pass."""
        if isinstance(error, Refused) and not error.counted:
            error.counted = True
            self.refused.labels(error.reason).inc()
