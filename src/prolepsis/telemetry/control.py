"""Metrics of what watches over speculation: kill switch, flags, breakers."""

from prometheus_client import CollectorRegistry, Counter, Gauge

BREAKER_STATES = ("closed", "open", "half_open", "forced_open", "forced_closed", "metrics_only")


class ControlMetrics:
    """A slice is one of few by construction, so it may be a label."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"prolepsis_{name}", text, labels, registry=registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"prolepsis_{name}", text, labels, registry=registry)

        self.killed = gauge("speculation_killed", "1 while the kill switch is on, by who keeps it on", "source")
        self.flags = counter("flag_evaluations", "Flags asked for requests", "flag", "variant", "reason", "error")
        self.flags_refused = counter("flag_file_refused", "Edits of the flag file that were not taken over")
        self.breaker_events = counter(
            "breaker_events", "What happened to breakers", "proposer", "slice", "before", "after", "reason"
        )
        self._breakers = gauge("breaker_state", "1 for the state that a breaker is in", "proposer", "slice", "state")

    def breaker(self, proposer: str, slice_name: str, state: str) -> None:
        """Show the state of one breaker."""
        for other in BREAKER_STATES:
            self._breakers.labels(proposer, slice_name, other).set(other == state)
