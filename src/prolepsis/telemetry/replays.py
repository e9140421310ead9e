"""Counters and gauges of requests that are decoded again without speculation: the indicator of correctness."""

from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge

ReplayOutcome = Literal["match", "near_tie", "structural", "failed"]
ReplayDrop = Literal["queue_full", "interrupted", "closed"]


class ReplayMetrics:
    """Match rate = match / (match + near_tie + structural); a structural difference is to page somebody."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"prolepsis_replay{name}", text, labels, registry=registry)

        self._replays = counter("s", "Requests decoded again without speculation, by what that showed", "outcome")
        for outcome in ("match", "near_tie", "structural", "failed"):
            self._replays.labels(outcome)  # an alert on a rise needs the 0 before it
        self._dropped = counter("_dropped", "Requests that were to be decoded again and were not", "reason")
        self.tokens = counter("_tokens", "Tokens decoded for replays")
        self.interrupted = counter("_interrupted", "Replays that gave way to requests and began anew")
        self.queued = Gauge("prolepsis_replay_queued", "Requests that wait to be decoded again", registry=registry)

    def ended(self, outcome: ReplayOutcome) -> None:
        self._replays.labels(outcome).inc()

    def dropped(self, reason: ReplayDrop, number: int = 1) -> None:
        self._dropped.labels(reason).inc(number)
