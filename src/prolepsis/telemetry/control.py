"""Metrics of what watches over speculation: kill switch, flags, drift."""

from prometheus_client import CollectorRegistry, Counter, Gauge

DRIFT_STATUSES = ("learning", "steady", "drifted", "cliff")


class ControlMetrics:
    """A traffic class is one of few by construction, so it may be a label."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"prolepsis_{name}", text, labels, registry=registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"prolepsis_{name}", text, labels, registry=registry)

        self.killed = gauge("speculation_killed", "1 while the kill switch is on, by who keeps it on", "source")
        self.flags = counter("flag_evaluations", "Flags asked for requests", "flag", "variant", "reason", "error")
        self.flags_refused = counter("flag_file_refused", "Edits of the flag file that were not taken over")
        self.drift_alarms = counter(
            "drift_alarms", "Alarms of drift and of cliffs", "proposer", "traffic_class", "kind"
        )
        self._drift = gauge(
            "drift_status", "1 for what is known of a proposer's drift", "proposer", "traffic_class", "status"
        )
        self._acceptance = gauge(
            "drift_acceptance", "Acceptance of first drafted tokens since its last change", "proposer", "traffic_class"
        )
        self._overestimated = gauge(
            "drift_overestimated",
            "What the proposer gave its first tokens less what came true",
            "proposer",
            "traffic_class",
        )

    def drift(
        self, proposer: str, traffic_class: str, status: str, acceptance: float | None, overestimated: float | None
    ) -> None:
        """Show what is known of one proposer's drift in a traffic class; figures that are None are not known yet."""
        for other in DRIFT_STATUSES:
            self._drift.labels(proposer, traffic_class, other).set(other == status)
        if acceptance is not None:
            self._acceptance.labels(proposer, traffic_class).set(acceptance)
        if overestimated is not None:
            self._overestimated.labels(proposer, traffic_class).set(overestimated)
