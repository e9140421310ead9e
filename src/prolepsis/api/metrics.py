"""Feeds requests that have ended to their metrics."""

from prolepsis.core.ended import RequestEnded
from prolepsis.telemetry.metrics import Metrics
from prolepsis.web.feature import Feature


class MetricsFeature(Feature):
    """Belongs to one event loop."""

    name = "metrics"

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def on_request_end(self, ended: RequestEnded) -> None:
        self._metrics.requests.ended(ended)
