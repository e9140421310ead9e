"""Prometheus metrics of one engine and its HTTP room, in a registry of their own: two engines never share a counter.

Names follow what vLLM and llama.cpp have in common, with an underscore in place of their colon. Ratios are left to
queries: acceptance rate = accepted / draft tokens, acceptance length = 1 + accepted / drafts.
"""

from collections.abc import Mapping, Sequence

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Info, disable_created_metrics, generate_latest

from prolepsis.core.stats import RequestStats
from prolepsis.telemetry.declare import TOKEN_BUCKETS, MetricsRegistry, counter, gauge, histogram
from prolepsis.telemetry.requests import RequestMetrics
from prolepsis.telemetry.spec_decode import ShadowCounters, SpecDecodeCounters

CONTENT_TYPE = CONTENT_TYPE_LATEST

disable_created_metrics()  # type: ignore[no-untyped-call]  # a series of creation times for each counter is noise

_STAGE_BUCKETS = (0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5)


class Metrics:
    """What an engine reports step by step and request by request; safe to feed from several threads."""

    def __init__(self, tenants: Sequence[str] = ()) -> None:
        """`tenants`: those that have series of their own."""
        self.registry = MetricsRegistry(tenants)
        self.requests = RequestMetrics(self.registry)
        self.spec_decode = SpecDecodeCounters(self.registry)
        self._shadow = ShadowCounters(self.registry)
        self._tokens = _Tokens(self.registry)
        self._engine = _Engine(self.registry)
        text = "HTTP responses by route and status"
        self._http = counter(self.registry, "http_requests", text, "route", "status", most=400)

    def describe(self, *, model: str, forward: str, exactness: str) -> None:
        """Say what serves: the labels of `prolepsis_engine_info`."""
        self._engine.info.info({"model": model, "forward": forward, "exactness": exactness})

    def step_done(self, seconds: Mapping[str, float], num_tokens: int) -> None:
        """Count one engine step: its time by part (propose, forward, ...) and the rows of its pass."""
        self._engine.step_done(seconds, num_tokens)

    def request_ended(self, stats: RequestStats) -> None:
        """Count what the engine did for one request that has ended; a replay is not one."""
        if stats.mode.reason == "replay":
            self._tokens.replayed.inc(stats.num_output_tokens)
            return
        self._tokens.count(stats)
        self.spec_decode.count(stats)
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
        self.running = gauge(registry, "num_requests_running", "Requests being decoded")
        self.waiting = gauge(registry, "num_requests_waiting", "Requests in the queue")
        self.kv_usage = gauge(registry, "kv_cache_usage_perc", "KV pages in use, 0 to 1")
        text = "Requests that failed because their grammar gave up"
        self.grammar_failures = counter(registry, "grammar_failures", text)
        self._steps = counter(registry, "steps", "Engine steps")
        self._rows = counter(registry, "step_rows", "Rows of all target passes")
        text = "Duration of engine steps"
        self._duration = histogram(registry, "step_duration_seconds", text, buckets=TOKEN_BUCKETS)
        text = "Duration of the stages of engine steps"
        stages = histogram(registry, "step_stage_duration_seconds", text, "stage", buckets=_STAGE_BUCKETS)
        self._stages = {stage: stages.labels(stage) for stage in STAGES}

    def step_done(self, seconds: Mapping[str, float], num_tokens: int) -> None:
        self._steps.inc()
        self._rows.inc(num_tokens)
        self._duration.observe(sum(seconds.values()))
        for stage, spent in seconds.items():
            self._stages[stage].observe(spent)


STAGES = ("schedule", "propose", "forward", "verify", "commit", "learn")


class _Tokens:
    """What requests took of the engine; those that clients left are among them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        text = "Requests of the engine by what speculation did"
        self._effective = counter(registry, "requests_effective", text, "mode", "reason")
        self._sums = {
            counter(registry, name, text): field
            for name, text, field in (
                ("prompt_tokens", "Prompt tokens of ended requests", "num_prompt_tokens"),
                ("generation_tokens", "Tokens generated for ended requests", "num_output_tokens"),
                ("num_preemptions", "Preemptions of ended requests", "num_preemptions"),
                ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache", "num_prompt_tokens"),
                ("prefix_cache_hits", "Prompt tokens found in the prefix cache", "num_cached_tokens"),
            )
        }
        self._device = counter(registry, "device_seconds", "Device time charged to ended requests, by purpose", "kind")
        self.replayed = counter(registry, "replay_tokens", "Tokens decoded for replays")

    def count(self, stats: RequestStats) -> None:
        self._effective.labels(stats.mode.mode, stats.mode.reason).inc()
        for sums, name in self._sums.items():
            sums.inc(getattr(stats, name))
        for kind, seconds in stats.device.by_kind().items():
            self._device.labels(kind).inc(seconds)
