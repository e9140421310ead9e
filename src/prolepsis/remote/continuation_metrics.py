"""Counters of a front end over all of its engines: losses, continuations and restarts."""

from typing import Literal, get_args

from prometheus_client import CollectorRegistry

from prolepsis.core.continuation import Continued, NotContinuedReason
from prolepsis.core.telemetry.declare import counter, histogram

RestartResult = Literal["started", "failed"]


class ContinuationMetrics:
    """Counters of one front end."""

    def __init__(self, registry: CollectorRegistry) -> None:
        text = "Requests that lost their engine and went on in another, by why it was lost and whether exactly"
        self._continued = counter(registry, "continuations", text, "reason", "result")
        text = "Time that clients waited for the next token of a request that lost its engine and went on"
        self._pauses = histogram(registry, "continuation_pause_seconds", text)
        text = "Requests that lost their engine and ended with it, by why"
        self._refused = counter(registry, "continuations_refused", text, "reason")
        text = "Engines that were started again after a loss, and starts that failed"
        self._restarts = counter(registry, "engine_restarts", text, "result")
        for result in get_args(RestartResult):
            self._restarts.labels(result)  # an alert on a rise needs the 0 before it

    def continued(self, continued: Continued, *, exact: bool) -> None:
        """A request has its first token after a loss."""
        self._continued.labels(continued.loss, "exact" if exact else "not_exact").inc()
        self._pauses.observe(continued.pause_s)

    def refused(self, reason: NotContinuedReason) -> None:
        """A request ended with its engine."""
        self._refused.labels(reason).inc()

    def restarted(self, result: RestartResult) -> None:
        """An engine was started again, or its start failed."""
        self._restarts.labels(result).inc()
