"""What requests cost: device seconds and what they are divided by. Ratios and money are left to queries."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge

from prolepsis.core.stats import DeviceSeconds, ProposerMemory


class CostMetrics:
    """Routes, proposers and arms are few; who feeds `request` bounds tenants (`control.cost.spending`)."""

    def __init__(self, registry: CollectorRegistry) -> None:
        labels = ("route", "tenant", "proposer", "arm")

        def counter(name: str, text: str, *names: str) -> Counter:
            return Counter(f"prolepsis_{name}", text, names, registry=registry)

        def gauge(name: str, text: str, *names: str) -> Gauge:
            return Gauge(f"prolepsis_{name}", text, names, registry=registry)

        self._device = counter("device_seconds", "Device time charged to ended requests, by what it went into", "kind")
        self._seconds = counter("request_device_seconds", "Device time of requests that were answered", *labels)
        self._predicted = counter("request_predicted_plain_seconds", "The same, had they been decoded plainly", *labels)
        self._tokens = counter("request_output_tokens", "Output tokens of these requests", *labels)
        self._price = gauge("price_per_device_second", "Of the price in use", "currency", "price", "version")
        self.refused = counter("price_book_refused", "Edits of the price book that were not taken over")
        self._memory = gauge("proposer_memory_bytes", "What a proposer takes beside the target", "proposer", "kind")

    def ended(self, device: DeviceSeconds) -> None:
        """Count any request that ended; called by the engine."""
        for kind, seconds in device.by_kind().items():
            self._device.labels(kind).inc(seconds)

    def request(self, labels: tuple[str, str, str, str], num_output_tokens: int, device: DeviceSeconds) -> None:
        """Count a request under its route, tenant, proposer and arm."""
        self._seconds.labels(*labels).inc(device.total)
        self._predicted.labels(*labels).inc(device.predicted_plain)
        self._tokens.labels(*labels).inc(num_output_tokens)

    def priced(self, currency: str, price: str, version: str, per_second: float) -> None:
        """Show the price in use, and no other."""
        self._price.clear()
        self._price.labels(currency, price, version).set(per_second)

    def memory(self, proposers: Iterable[ProposerMemory]) -> None:
        """Show the memory of proposers; one that was taken out keeps its last figure."""
        for one in proposers:
            for kind, size in (("weights", one.weights), ("kv", one.kv), ("index", one.index)):
                self._memory.labels(one.proposer, kind).set(size)
