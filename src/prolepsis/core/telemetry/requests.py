"""Series of HTTP requests that have ended: by route and tier for objectives, by rule and arm for rollouts.

Latencies begin when the request arrives, as for the client, so the wait for admission is part of them. Of a
request with several prompts each prompt is observed. A sampled trace is the exemplar of its latencies.
"""

from functools import partial

from prometheus_client import CollectorRegistry

from prolepsis.core.ended import PromptEnded, RequestAbout, RequestEnded
from prolepsis.core.stages import stages_of
from prolepsis.core.stats import Mode, RequestStats
from prolepsis.core.telemetry.declare import LATENCY_BUCKETS, TOKEN_BUCKETS, BoundedHistogram, counter, histogram
from prolepsis.core.telemetry.distribution import Distribution
from prolepsis.core.telemetry.labels import NO_TENANT
from prolepsis.core.token_intervals import BOUNDS_S

NONE = "none"
"""The rule or arm of a request without one."""

_MAX_TOKENS = (1, 4, 16, 64, 256, 512, 1024, 2048, 4096, 8192, 32768, 131072)
_BY_ROUTE = ("route", "tier", "arm", "mode", "outcome")
_MOST_BY_ROUTE = 240
"""20 routes and 4 tiers, each with three arms or modes."""
_BY_RULE = ("rule", "arm", "mode", "outcome")
_MOST_BY_RULE = 150
"""50 rules, each with three."""
_RULE_LATENCY_BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5)
_RULE_TOKEN_BUCKETS = (0.01, 0.02, 0.03, 0.05, 0.1)


class RequestMetrics:
    """Belongs to one event loop."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = counter(
            registry, "requests", "Admitted requests by their end", "route", "tier", "outcome", most=400
        )
        text = "The same, by the policy's rule"
        self._rule_requests = counter(registry, "rule_requests", text, *_BY_RULE, most=240)
        text = "The same, of the tenants in metrics_tenants"
        self._tenant_requests = counter(registry, "tenant_requests", text, "tenant", "outcome", most=160)
        text = "Prompt tokens of ended requests, by the client's program"
        self._client_prompt = counter(registry, "client_prompt_tokens", text, "client")
        text = "Those of them that were in the prefix cache"
        self._client_cached = counter(registry, "client_cached_tokens", text, "client")
        self._latencies = _Latencies(registry)
        self._stages = _Stages(registry)
        text = "Wall seconds of requests by stage; they add up to the time from arrival to the complete answer"
        self._stage_seconds = counter(registry, "request_stage_seconds", text, "tier", "stage")
        self._intervals = _Intervals(registry)
        self._answers = _Answers(registry)
        text = "Requests whose deadline passed, by what they waited for"
        self._timeouts = counter(registry, "request_timeouts", text, "tier", "stage")

    def ended(self, ended: RequestEnded) -> None:
        """Count a request that has ended."""
        about, outcome = ended.about, ended.end
        mode = _mode([prompt.stats for prompt in ended.prompts])
        self._requests.labels(about.route, about.tier, outcome).inc()
        self._rule_requests.labels(about.policy_rule or NONE, _arm(ended), mode, outcome).inc()
        self._tenant_requests.labels(about.tenant or NO_TENANT, outcome).inc()
        if ended.error == "deadline_exceeded":
            self._timeouts.labels(about.tier, _waited_for(ended)).inc()
        for prompt in ended.prompts:
            self._client_prompt.labels(about.client).inc(prompt.stats.num_prompt_tokens)
            self._client_cached.labels(about.client).inc(prompt.stats.num_cached_tokens)
            for stage, seconds in stages_of(prompt, about.arrived, ended.ended_at).by_stage().items():
                self._stage_seconds.labels(about.tier, stage).inc(seconds)
            if prompt.answer in ("complete", "cut"):
                self._latencies.ended(ended, prompt)
                self._intervals.ended(about.tier, prompt)
                if prompt.stats.device.total or prompt.stats.queue_s:  # the engine reported them
                    self._stages.ended(about.tier, prompt, _exemplar(about))
            elif prompt.answer == "unreported":  # as where the client left
                self._latencies.unreported(ended, prompt)
            self._answers.ended(prompt)


class _Answers:
    """Counts of request parameters and of outcomes."""

    def __init__(self, registry: CollectorRegistry) -> None:
        text = "Longest answer that a request asked for"
        self._asked = Distribution(registry, "request_params_max_tokens", text, buckets=_MAX_TOKENS)
        text = "Answers by what ended them"
        self._finished = counter(registry, "finished_answers", text, "finish_reason")
        text = "Answers that had to have a form, by whether they have it"
        self._structured = counter(registry, "structured_answers", text, "kind", "mode", "result")

    def ended(self, prompt: PromptEnded) -> None:
        self._asked.labels().add(prompt.request.params.max_tokens)
        for reason in prompt.finish_reasons:
            self._finished.labels(reason).inc()
        if prompt.end == "finished" and prompt.answer == "complete" and "content_filter" not in prompt.finish_reasons:
            self._check(prompt)  # an output policy that ends an answer is not its fault

    def _check(self, prompt: PromptEnded) -> None:
        """Count each answer once: one with tool calls by them, others by the grammar if there is one."""
        mode, calls = prompt.stats.mode.mode, prompt.whole_calls
        for is_whole in calls:
            self._structured.labels("tool_calls", mode, "valid" if is_whole else "invalid").inc()
        if prompt.request.grammar is None:
            return
        num_others = len(prompt.finish_reasons) - len(calls)
        num_cut = min(num_others, max(0, prompt.finish_reasons.count("length") - calls.count(False)))
        for result, number in (("cut", num_cut), ("valid", num_others - num_cut)):
            if number > 0:
                self._structured.labels(prompt.request.grammar.kind, mode, result).inc(number)


class _Latencies:
    """From arrival to the first token and to the end, and of a token, of requests that the engine worked on."""

    def __init__(self, registry: CollectorRegistry) -> None:
        made = partial(histogram, registry, usual="finished")

        def both(name: str, text: str, by_route: tuple[float, ...], by_rule: tuple[float, ...]) -> _Both:
            of_rule = f"{text}, by the policy's rule"
            return (
                made(f"{name}_seconds", text, *_BY_ROUTE, buckets=by_route, most=_MOST_BY_ROUTE),
                made(f"rule_{name}_seconds", of_rule, *_BY_RULE, buckets=by_rule, most=_MOST_BY_RULE),
            )

        text = "From arrival to the first token"
        self._first_token = both("time_to_first_token", text, LATENCY_BUCKETS, _RULE_LATENCY_BUCKETS)
        text = "Mean time of a token after the first"
        self._per_token = both("request_time_per_output_token", text, TOKEN_BUCKETS, _RULE_TOKEN_BUCKETS)
        text, by = "From arrival to the end", ("route", "tier", "mode", "outcome")
        self._total = made("e2e_request_latency_seconds", text, *by, buckets=_TOTAL_BUCKETS, most=160)

    def ended(self, ended: RequestEnded, prompt: PromptEnded) -> None:
        about, stats, arm, exemplar = ended.about, prompt.stats, _arm(ended), _exemplar(ended.about)
        mode, outcome = stats.mode.mode, prompt.end
        route = (about.route, about.tier, arm, mode, outcome)
        rule = (about.policy_rule or NONE, arm, mode, outcome)
        total = self._total.labels(about.route, about.tier, mode, outcome)
        total.observe(prompt.waited_s + stats.total_s, exemplar)
        if stats.first_token_s is not None:
            _observe(self._first_token, (route, rule), prompt.waited_s + stats.first_token_s, exemplar)
        if (seconds := prompt.per_token_s) is not None:
            _observe(self._per_token, (route, rule), seconds, exemplar)

    def unreported(self, ended: RequestEnded, prompt: PromptEnded) -> None:
        """A request whose figures the engine never reported counts with its duration as the server saw it."""
        about, seconds = ended.about, ended.ended_at - prompt.began_at
        total = self._total.labels(about.route, about.tier, prompt.stats.mode.mode, prompt.end)
        total.observe(prompt.waited_s + seconds, _exemplar(about))


_Both = tuple[BoundedHistogram, BoundedHistogram]
"""The same value by route and tier, and by rule."""
_TOTAL_BUCKETS = (0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


Exemplar = dict[str, str] | None


def _observe(both: _Both, labels: tuple[tuple[str, ...], tuple[str, ...]], seconds: float, exemplar: Exemplar) -> None:
    for series, names in zip(both, labels, strict=True):
        series.labels(*names).observe(seconds, exemplar)


def _exemplar(about: RequestAbout) -> Exemplar:
    """Return the span of a request whose trace is sampled: of others a receiver may know nothing."""
    trace = about.trace
    return {"trace_id": trace.trace_id, "span_id": trace.span_id} if trace is not None and trace.sampled else None


class _Stages:
    """Time of a request by stage."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def stage(name: str, text: str) -> BoundedHistogram:
            return histogram(registry, f"request_{name}_time_seconds", text, "tier")

        self._queue = stage("queue", "Wait for admission, and in the engine while nothing of the request runs")
        self._prefill = stage("prefill", "From its start in the engine to the first token")
        self._decode = stage("decode", "From the first token to the last")
        self._inference = stage("inference", "From its start in the engine to its end, without the queue")
        self._stream = stage("stream", "Time in which the answer waited for the client to take it")

    def ended(self, tier: str, prompt: PromptEnded, exemplar: Exemplar) -> None:
        stats = prompt.stats
        self._queue.labels(tier).observe(prompt.waited_s + stats.queue_s, exemplar)
        self._inference.labels(tier).observe(stats.compute_s, exemplar)
        self._stream.labels(tier).observe(prompt.stream_s, exemplar)
        if stats.first_token_s is not None:
            self._prefill.labels(tier).observe(stats.prefill_s, exemplar)
            self._decode.labels(tier).observe(stats.total_s - stats.first_token_s, exemplar)


class _Intervals:
    """Between the tokens of an answer; drafts bring several at once, so a wait and the time of a token differ."""

    def __init__(self, registry: CollectorRegistry) -> None:
        text = "Wait between two arrivals of tokens of an answer"
        self._waits = Distribution(registry, "inter_token_latency_seconds", text, "tier", "mode", buckets=BOUNDS_S)
        text = "The same, divided by the tokens that arrive, of each token after the first arrival"
        self._amortised = Distribution(
            registry, "amortized_token_latency_seconds", text, "tier", "mode", buckets=BOUNDS_S
        )

    def ended(self, tier: str, prompt: PromptEnded) -> None:
        intervals, mode = prompt.intervals, prompt.stats.mode.mode
        if intervals.seconds:
            self._waits.labels(tier, mode).add_counts(intervals.waits, intervals.seconds)
            self._amortised.labels(tier, mode).add_counts(intervals.tokens, intervals.seconds)


def _arm(ended: RequestEnded) -> str:
    assignment = ended.about.assignment
    return assignment.arm if assignment is not None else NONE


def _mode(prompts: list[RequestStats]) -> Mode:
    """Return what speculation did for any of the prompts."""
    modes = {stats.mode.mode for stats in prompts}
    return "on" if "on" in modes else "shadow" if "shadow" in modes else "off"


def _waited_for(ended: RequestEnded) -> str:
    """Return the stage in which the deadline passed; `step`: one that was too long for the engine to say more."""
    late = [prompt for prompt in ended.prompts if prompt.end in ("failed", "expired")]
    if not late:
        return "admission"
    stats = late[0].stats
    if stats.num_output_tokens:
        return "decode"
    return "prefill" if stats.device.total else "queue" if stats.queue_s else "step"
