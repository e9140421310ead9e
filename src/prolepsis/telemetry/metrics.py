"""Prometheus metrics of one engine and its HTTP room, in a registry of their own: two engines never share a counter.

Names follow what vLLM and llama.cpp have in common, with an underscore in place of their colon. Ratios are left to
queries: acceptance rate = accepted / draft tokens, acceptance length = 1 + accepted / drafts.
"""

from collections.abc import Mapping
from typing import Literal

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    disable_created_metrics,
    generate_latest,
)

from prolepsis.core.stats import RequestStats
from prolepsis.telemetry.spec_decode import ShadowCounters, SpecDecodeCounters

CONTENT_TYPE = CONTENT_TYPE_LATEST
Outcome = Literal["finished", "aborted", "failed"]

disable_created_metrics()  # type: ignore[no-untyped-call]  # a series of creation times for each counter is noise

_LATENCY_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_TOKEN_BUCKETS = (0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0)


class Metrics:
    """What an engine reports step by step and request by request; safe to feed from several threads."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.spec_decode = SpecDecodeCounters(self.registry)
        self._shadow = ShadowCounters(self.registry)
        self._requests = _Requests(self.registry)
        self._engine = _Engine(self.registry)
        self._http = Counter(
            "prolepsis_http_requests", "HTTP responses by route and status", ["route", "status"], registry=self.registry
        )

    def describe(self, *, model: str, forward: str, exactness: str) -> None:
        """Say what serves: the labels of `prolepsis_engine_info`."""
        self._engine.info.info({"model": model, "forward": forward, "exactness": exactness})

    def step_done(self, seconds: Mapping[str, float], num_tokens: int) -> None:
        """Count one engine step: its time by part (propose, forward, ...) and the rows of its pass."""
        self._engine.step_done(seconds, num_tokens)

    def request_ended(self, stats: RequestStats, outcome: Outcome) -> None:
        """Count one accepted request that has ended; a replay is not one."""
        if stats.mode.reason == "replay":
            self._requests.replay_tokens.inc(stats.num_output_tokens)
            return
        self._requests.ended(stats, outcome)
        self.spec_decode.count(stats.proposers)
        self.spec_decode.count_plain(stats.plain_steps)
        self._shadow.count(stats.shadow)

    def proposer_failed(self, proposer: str, num_failures: int = 1) -> None:
        """Count calls of a proposer that raised or returned nonsense."""
        self.spec_decode.failures.labels(proposer).inc(num_failures)

    def grammar_failed(self) -> None:
        """Count a request that failed because its grammar gave up."""
        self._engine.grammar_failures.inc()

    def set_load(self, num_running: int, num_waiting: int, kv_usage: float) -> None:
        """Set the gauges; `kv_usage` is the share of KV pages in use, 0 to 1."""
        self._engine.running.set(num_running)
        self._engine.waiting.set(num_waiting)
        self._engine.kv_usage.set(kv_usage)

    def http_request_ended(self, route: str, status: int) -> None:
        """Count one HTTP response; `route` is the route's pattern, never the path as given."""
        self._http.labels(route, str(status)).inc()

    def exposition(self) -> bytes:
        """Return everything in Prometheus' text format (`CONTENT_TYPE`)."""
        return generate_latest(self.registry)


class _Engine:
    """Load, memory and step time."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.info = Info("prolepsis_engine", "What this process serves", registry=registry)
        self.running = Gauge("prolepsis_num_requests_running", "Requests being decoded", registry=registry)
        self.waiting = Gauge("prolepsis_num_requests_waiting", "Requests in the queue", registry=registry)
        self.kv_usage = Gauge("prolepsis_kv_cache_usage_perc", "KV pages in use, 0 to 1", registry=registry)
        self.grammar_failures = Counter(
            "prolepsis_grammar_failures", "Requests that failed because their grammar gave up", registry=registry
        )
        self._steps = Counter("prolepsis_steps", "Engine steps", registry=registry)
        self._rows = Counter("prolepsis_step_rows", "Rows of all target passes", registry=registry)
        self._seconds = Counter("prolepsis_step_seconds", "Time of engine steps by part", ["part"], registry=registry)
        self._duration = Histogram(
            "prolepsis_step_duration_seconds", "Duration of engine steps", buckets=_TOKEN_BUCKETS, registry=registry
        )

    def step_done(self, seconds: Mapping[str, float], num_tokens: int) -> None:
        self._steps.inc()
        self._rows.inc(num_tokens)
        self._duration.observe(sum(seconds.values()))
        for part, spent in seconds.items():
            self._seconds.labels(part).inc(spent)


class _Requests:
    """Requests, their tokens and their latencies."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"prolepsis_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...] = _LATENCY_BUCKETS) -> Histogram:
            return Histogram(f"prolepsis_{name}_seconds", text, buckets=buckets, registry=registry)

        self._requests = counter("requests", "Accepted requests by their end", "outcome")
        self._effective = counter("requests_effective", "Accepted requests by what speculation did", "mode", "reason")
        self._sums = {
            counter("prompt_tokens", "Prompt tokens of ended requests"): "num_prompt_tokens",
            counter("generation_tokens", "Tokens generated for ended requests"): "num_output_tokens",
            counter("num_preemptions", "Preemptions of ended requests"): "num_preemptions",
            counter("prefix_cache_queries", "Prompt tokens looked up in the prefix cache"): "num_prompt_tokens",
            counter("prefix_cache_hits", "Prompt tokens found in the prefix cache"): "num_cached_tokens",
        }
        self._device = counter("device_seconds", "Device time charged to ended requests, by purpose", "kind")
        self.replay_tokens = counter("replay_tokens", "Tokens decoded for replays")
        self._queue = histogram("request_queue_time", "Time spent waiting for the engine")
        self._compute = histogram("request_inference_time", "Time spent in engine steps")
        self._first_token = histogram("time_to_first_token", "From arrival to the first token")
        self._total = histogram("e2e_request_latency", "From arrival to the end")
        self._per_token = histogram(
            "request_time_per_output_token", "Mean time of a token after the first, per request", _TOKEN_BUCKETS
        )

    def ended(self, stats: RequestStats, outcome: Outcome) -> None:
        self._requests.labels(outcome).inc()
        self._effective.labels(stats.mode.mode, stats.mode.reason).inc()
        for counter, name in self._sums.items():
            counter.inc(getattr(stats, name))
        for kind, seconds in stats.device.by_kind().items():
            self._device.labels(kind).inc(seconds)
        self._observe_times(stats)

    def _observe_times(self, stats: RequestStats) -> None:
        self._queue.observe(stats.queue_s)
        self._compute.observe(stats.compute_s)
        self._total.observe(stats.total_s)
        if stats.first_token_s is not None:
            self._first_token.observe(stats.first_token_s)
            if stats.num_output_tokens > 1:
                self._per_token.observe((stats.total_s - stats.first_token_s) / (stats.num_output_tokens - 1))
