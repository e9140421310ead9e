"""What failover counts."""

from typing import Literal

from prometheus_client import CollectorRegistry

from prolepsis.core.continuation import Continued, NotContinuedReason
from prolepsis.telemetry.declare import counter, histogram


class FailoverMetrics:
    """Counters of one front door, whichever engines serve it."""

    def __init__(self, registry: CollectorRegistry) -> None:
        text = "Requests that lost their engine and went on in another, by why it was lost and whether exactly"
        self._continued = counter(registry, "continuations", text, "reason", "result")
        text = "Time from the loss of an engine until the next token of a request that went on"
        self._pauses = histogram(registry, "continuation_pause_seconds", text)
        text = "Requests that lost their engine and ended with it, by why"
        self._refused = counter(registry, "continuations_refused", text, "reason")
        text = "Engines that were started again after a loss, and starts that failed"
        self._restarts = counter(registry, "engine_restarts", text, "result")

    def continued(self, one: Continued, *, exact: bool) -> None:
        """A request has its first token after a loss."""
        self._continued.labels(one.loss, "exact" if exact else "not_exact").inc()
        self._pauses.observe(one.pause_s)

    def refused(self, reason: NotContinuedReason) -> None:
        """A request ended with its engine."""
        self._refused.labels(reason).inc()

    def restarted(self, result: Literal["started", "failed"]) -> None:
        """An engine was to be started again."""
        self._restarts.labels(result).inc()
