"""Counters and gauges of the front door; label values come from fixed sets, never from callers."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_WAIT_BUCKETS = (0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


class DoorMetrics:
    """What was let in, what waits, what was turned away and why."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"prolepsis_{name}", text, labels, registry=registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"prolepsis_{name}", text, labels, registry=registry)

        self.refused = counter("door_refused", "Requests turned away, by reason", "reason")
        self.queued = gauge("door_queued_requests", "Requests that wait before the engine", "tier")
        self.queue_age = gauge("door_queue_age_seconds", "Age of the oldest waiting request that is not batch work")
        self.in_engine = gauge("door_samples_in_engine", "Samples let through to the engine and not ended")
        self.wait = Histogram(
            "prolepsis_door_wait_seconds", "Time before the engine", ["tier"], buckets=_WAIT_BUCKETS, registry=registry
        )
        self.rung = gauge("shed_rung", "Rung of the load shedding ladder: 0 calm to 4 low tiers refused")
        self.rung_changes = counter("shed_changes", "Changes of the rung", "rung", "direction")
        self.cache = counter(
            "response_cache_requests", "Deterministic requests looked up in the response cache", "result"
        )
        self.cache_bytes = gauge("response_cache_bytes", "Estimated size of the stored answers")
