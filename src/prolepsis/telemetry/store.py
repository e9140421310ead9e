"""Counters and gauges of what is written to the store behind the scenes."""

from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge

DropReason = Literal["queue_full", "refused", "closed"]


class StoreMetrics:
    """What was written, what waits, what was lost and why; `kind` is request or audit."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"prolepsis_store_{name}", text, registry=registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"prolepsis_store_{name}", text, labels, registry=registry)

        self.written = counter("written", "Items on disk", "kind")
        self.dropped = counter("dropped", "Items lost, by reason", "kind", "reason")
        self.failures = counter("failures", "Attempts to write that failed")
        self.queued = gauge("queued_items", "Items that wait to be written")
        self.up = gauge("up", "1 where the last attempt to write went well, 0 where it failed")
