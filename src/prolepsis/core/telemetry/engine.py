"""Metrics of an engine: its start, its load and its steps, and the tokens of requests that have ended."""

from collections.abc import Mapping, Sequence

from prometheus_client import CollectorRegistry

from prolepsis.core.request_figures import FIGURES
from prolepsis.core.stats import RequestStats
from prolepsis.core.telemetry.declare import TOKEN_BUCKETS, counter, gauge
from prolepsis.core.telemetry.distribution import Distribution

_STEP_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)
_REQUEST_TOKENS = (1, 4, 16, 64, 256, 512, 1024, 2048, 4096, 8192, 32768, 131072)
_STAGE_BUCKETS = (0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5)
STAGES = ("schedule", "propose", "forward", "verify", "commit", "learn")


class EngineLoad:
    """Load, memory and step time."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.ready = gauge(registry, "engine_ready", "1 while the engine takes steps; 0: one is stuck, or it is gone")
        self.running = gauge(registry, "num_requests_running", "Requests being decoded")
        self.waiting = gauge(registry, "num_requests_waiting", "Requests in the queue")
        self.kv_usage = gauge(registry, "kv_cache_usage_perc", "KV pages in use, 0 to 1")
        text = "Requests that failed because their grammar gave up"
        self.grammar_failures = counter(registry, "grammar_failures", text)
        text = "Requests that failed because the model computed no numbers for their next token"
        self.not_finite_failures = counter(registry, "not_finite_failures", text)
        text = "Faults in decisions about drafts, in learning from steps and in figures, which failed no request"
        self.contained_faults = counter(registry, "contained_faults", text, "kind")
        self._steps = counter(registry, "steps", "Engine steps")
        text = "Tokens of the target's pass in a step"
        self._tokens = Distribution(registry, "step_tokens", text, buckets=_STEP_TOKENS).labels()
        text = "Duration of engine steps"
        self._duration = Distribution(registry, "step_duration_seconds", text, buckets=TOKEN_BUCKETS).labels()
        text = "Duration of schedule, propose, forward, verify, commit and learn in a step"
        name = "step_stage_duration_seconds"
        stages = Distribution(registry, name, text, "stage", buckets=_STAGE_BUCKETS, most=len(STAGES))
        self._stages = {stage: stages.labels(stage) for stage in STAGES}

    def step_done(self, seconds: Mapping[str, float], num_tokens: int) -> None:
        self._steps.inc()
        self._tokens.add(num_tokens)
        self._duration.add(sum(seconds.values()))
        for stage, spent in seconds.items():
            self._stages[stage].add(spent)


class TokenCounts:
    """Tokens of requests in the engine, including requests whose clients left."""

    def __init__(self, registry: CollectorRegistry) -> None:
        text = "Requests of the engine by what speculation did"
        self._effective = counter(registry, "requests_effective", text, "mode", "reason")
        self._sums = {
            counter(registry, name, text): figure.read
            for figure in FIGURES
            for name, text in (figure.counters or {}).items()
        }
        self._device = counter(registry, "device_seconds", "Device time charged to ended requests, by purpose", "kind")
        text = "Tokens of answers whose terms differ inside a call or form: emitted, drafted and accepted ones, by part"
        self._inside = counter(registry, "spec_decode_inside_tokens", text, "kind", "result")
        text = "Prompt tokens of a request"
        self._prompt = Distribution(registry, "request_prompt_tokens", text, buckets=_REQUEST_TOKENS).labels()
        text = "Tokens generated for a request"
        self._generation = Distribution(registry, "request_generation_tokens", text, buckets=_REQUEST_TOKENS).labels()
        self.replayed = counter(registry, "replay_tokens", "Tokens decoded for replays")

    def count(self, stats: RequestStats) -> None:
        self._effective.labels(stats.mode.mode, stats.mode.reason).inc()
        for sums, read in self._sums.items():
            sums.inc(read(stats))
        self._prompt.add(stats.num_prompt_tokens)
        self._generation.add(stats.num_output_tokens)
        for part, counts in stats.inside.items():
            for result, number in counts.items():
                self._inside.labels(part, result).inc(number)
        for kind, seconds in stats.device.by_kind().items():
            self._device.labels(kind).inc(seconds)


class Startup:
    """Duration of a cold start; a process starts once."""

    def __init__(self, registry: CollectorRegistry) -> None:
        text = "A cold start: load, prepare (until ready); compile and the phases in words are parts of load"
        self._seconds = gauge(registry, "startup_seconds", text, "stage")
        self._compiled = counter(
            registry, "compilations", "Native libraries that this start compiled, as none kept them"
        )
        self.cold_requests = counter(registry, "cold_requests", "Requests that ended before the engine was ready")

    def loaded(self, seconds: float, compilations: Sequence[float]) -> None:
        self._seconds.labels("load").set(seconds)
        self._seconds.labels("compile").set(sum(compilations))
        self._compiled.inc(len(compilations))

    def took(self, phases: Mapping[str, float]) -> None:
        """Set the seconds of phases, by their words."""
        for phase, seconds in phases.items():
            self._seconds.labels(phase).set(seconds)

    def ready(self, seconds: float) -> None:
        self._seconds.labels("prepare").set(seconds)
