"""Series of HTTP requests that have ended: by route and tier for objectives, by rule and arm for rollouts.

Latencies begin when the request arrives, as for the client, so the wait for admission is part of them. Of a
request with several prompts each prompt is observed. A sampled trace is the exemplar of its latencies.
"""

from collections.abc import Callable
from functools import partial

from prometheus_client import CollectorRegistry

from prolepsis.core.bands import bands_of
from prolepsis.core.ended import PromptEnded, RequestEnded
from prolepsis.core.stages import stages_of
from prolepsis.core.stats import Mode
from prolepsis.core.telemetry.declare import LATENCY_BUCKETS, TOKEN_BUCKETS, counter, histogram
from prolepsis.core.telemetry.distribution import Distribution
from prolepsis.core.telemetry.labels import NO_TENANT
from prolepsis.core.token_intervals import BOUNDS_S

NONE = "none"  # the rule or arm of a request without one

_MAX_TOKENS = (1, 4, 16, 64, 256, 512, 1024, 2048, 4096, 8192, 32768, 131072)
_BY_ROUTE = ("route", "tier", "arm", "mode", "outcome")
_MOST_BY_ROUTE = 240  # 20 routes and 4 tiers, each with three arms or modes
_BY_RULE = ("rule", "arm", "mode", "outcome")
_MOST_BY_RULE = 150  # 50 rules, each with three
_RULE_LATENCY_BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5)
_RULE_TOKEN_BUCKETS = (0.01, 0.02, 0.03, 0.05, 0.1)
_TOTAL_BUCKETS = (0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)

_MET = ("missed", "met")

Seconds = Callable[[PromptEnded], float | None]  # of a prompt; None: it has no such time
_LATENCIES: tuple[tuple[str, str, Seconds, tuple[float, ...], tuple[float, ...]], ...] = (
    (
        *("time_to_first_token", "From arrival to the first token"),
        lambda prompt: None if (first := prompt.stats.first_token_s) is None else prompt.waited_s + first,
        *(LATENCY_BUCKETS, _RULE_LATENCY_BUCKETS),
    ),
    (
        *("request_time_per_output_token", "Mean time of a token after the first"),
        lambda prompt: prompt.per_token_s,
        *(TOKEN_BUCKETS, _RULE_TOKEN_BUCKETS),
    ),
)
"""By route and tier, and the same by rule: names, texts, values and the bounds of buckets."""
_STAGES: tuple[tuple[str, str, Seconds], ...] = (
    (
        *("queue", "Wait for admission, and in the engine until a pass has a row of it"),
        lambda prompt: prompt.waited_s + prompt.stats.queue_s,
    ),
    (
        *("prefill", "From its start in the engine to the first token"),
        lambda prompt: None if prompt.stats.first_token_s is None else prompt.stats.prefill_s,
    ),
    (
        *("decode", "From the first token to the last"),
        lambda prompt: None if (first := prompt.stats.first_token_s) is None else prompt.stats.total_s - first,
    ),
    ("inference", "From its start in the engine to its end, without the queue", lambda prompt: prompt.stats.compute_s),
    ("stream", "Time in which the answer waited for the client to take it", lambda prompt: prompt.stream_s),
)


class RequestMetrics:
    """Belongs to one event loop."""

    def __init__(self, registry: CollectorRegistry) -> None:
        count, times = partial(counter, registry), partial(histogram, registry, usual="finished")
        spread = partial(Distribution, registry)
        self._requests = count("requests", "Admitted requests by their end", "route", "tier", "outcome", most=400)
        self._rule_requests = count("rule_requests", "The same, by the policy's rule", *_BY_RULE, most=240)
        text = "The same, of the tenants in metrics_tenants"
        self._tenant_requests = count("tenant_requests", text, "tenant", "outcome", most=160)
        text = "Deadlines that passed: in admission, queue, prefill, decode, or in a step that took too long"
        self._timeouts = count("request_timeouts", text, "tier", "stage")
        text = "Prompt tokens of ended requests, by the program that sent them, as user-agent names it"
        self._client_prompt = count("client_prompt_tokens", text, "client")
        self._client_cached = count("client_cached_tokens", "Those of them that were in the prefix cache", "client")
        text = "Tokens of answers by what caches had of them, and by length; those of drafts and those of them accepted"
        self._bands = count("band_tokens", text, "band", "result", most=24)
        text = "Share of a request's draft tokens that were accepted"
        self._acceptance = spread("request_acceptance_ratio", text, "route", buckets=(0.25, 0.5, 0.75, 1.0), most=4)
        text = "Wall seconds of requests by stage; they add up to the time from arrival to the complete answer"
        self._stage_seconds = count("request_stage_seconds", text, "tier", "stage")
        text, by = "From arrival to the end", ("route", "tier", "mode", "outcome")
        self._total = times("e2e_request_latency_seconds", text, *by, buckets=_TOTAL_BUCKETS, most=160)
        self._latencies = [
            (
                seconds,
                times(f"{name}_seconds", text, *_BY_ROUTE, buckets=by_route, most=_MOST_BY_ROUTE),
                times(
                    *(f"rule_{name}_seconds", f"{text}, by the policy's rule", *_BY_RULE),
                    buckets=by_rule,
                    most=_MOST_BY_RULE,
                ),
            )
            for name, text, seconds, by_route, by_rule in _LATENCIES
        ]
        self._stages = [
            (seconds, histogram(registry, f"request_{name}_time_seconds", text, "tier"))
            for name, text, seconds in _STAGES
        ]
        # drafts bring several tokens at once, so a wait and the time of a token differ
        text = "Wait between two arrivals of tokens of an answer; drafts bring several at once"
        self._waits = spread("inter_token_latency_seconds", text, "tier", "mode", buckets=BOUNDS_S)
        text = "The same, divided by the tokens that arrive, of each token after the first arrival"
        self._amortised = spread("amortized_token_latency_seconds", text, "tier", "mode", buckets=BOUNDS_S)
        text = "Longest answer that a request asked for"
        self._asked = spread("request_params_max_tokens", text, buckets=_MAX_TOKENS).labels()
        self._finished = count("finished_answers", "Answers by what ended them, as clients see it", "finish_reason")
        text = "Finished answers that had to have a form: with tool calls (valid, invalid), or another (valid, cut)"
        self._structured = count("structured_answers", text, "kind", "mode", "result")
        self._targets = count("targets", "Latency targets of ended requests", "kind", "result", most=4)
        self._target_tokens = count("target_tokens", "Tokens of the answers of these requests", "result", most=2)

    def ended(self, ended: RequestEnded) -> None:
        about, outcome = ended.about, ended.end
        modes = {prompt.stats.mode.mode for prompt in ended.prompts}
        mode: Mode = "on" if "on" in modes else "shadow" if "shadow" in modes else "off"
        self._requests.labels(about.route, about.tier, outcome).inc()
        self._rule_requests.labels(about.policy_rule or NONE, about.arm or NONE, mode, outcome).inc()
        self._tenant_requests.labels(about.tenant or NO_TENANT, outcome).inc()
        if ended.error == "deadline_exceeded":
            self._timeouts.labels(about.tier, _waited_for(ended)).inc()
        for prompt in ended.prompts:
            self._client_prompt.labels(about.client).inc(prompt.stats.num_prompt_tokens)
            self._client_cached.labels(about.client).inc(prompt.stats.num_cached_tokens)
            for band in bands_of(about, prompt):
                self._bands.labels(band, "emitted").inc(prompt.stats.num_output_tokens)
                self._bands.labels(band, "drafted").inc(prompt.stats.num_draft_tokens)
                self._bands.labels(band, "accepted").inc(prompt.stats.num_accepted)
            for stage, seconds in stages_of(prompt, about.arrived, ended.ended_at).by_stage().items():
                self._stage_seconds.labels(about.tier, stage).inc(seconds)
            self._observe(ended, prompt)
            for kind, is_kept in prompt.targets.items():
                self._targets.labels(kind, _MET[is_kept]).inc()
            if prompt.met_target is not None:
                self._target_tokens.labels(_MET[prompt.met_target]).inc(prompt.stats.num_output_tokens)
            self._asked.add(prompt.request.params.max_tokens)
            for reason in prompt.finish_reasons:
                self._finished.labels(reason).inc()
            if prompt.end == "finished" and prompt.answer == "complete":
                self._check_form(prompt)

    def _observe(self, ended: RequestEnded, prompt: PromptEnded) -> None:
        """Observe the times of a prompt that the engine worked on."""
        if prompt.answer == "cached":
            return
        about, stats, mode, outcome = ended.about, prompt.stats, prompt.stats.mode.mode, prompt.end
        trace, exemplar = about.trace, None
        if trace is not None and trace.sampled:  # of others a receiver may know nothing
            exemplar = {"trace_id": trace.trace_id, "span_id": trace.span_id}
        total = self._total.labels(about.route, about.tier, mode, outcome)
        if prompt.answer == "unreported":  # as where the client left: its time as the server saw it
            total.observe(prompt.waited_s + ended.ended_at - prompt.began_at, exemplar)
            return
        total.observe(prompt.waited_s + stats.total_s, exemplar)
        arm = about.arm or NONE
        for seconds, by_route, by_rule in self._latencies:
            if (value := seconds(prompt)) is not None:
                by_route.labels(about.route, about.tier, arm, mode, outcome).observe(value, exemplar)
                by_rule.labels(about.policy_rule or NONE, arm, mode, outcome).observe(value, exemplar)
        if (rate := stats.acceptance_rate) is not None:
            self._acceptance.labels(about.route).add(rate)
        if stats.device.total or stats.queue_s:  # the engine reported them
            for seconds, by_tier in self._stages:
                if (value := seconds(prompt)) is not None:
                    by_tier.labels(about.tier).observe(value, exemplar)
        if (intervals := prompt.intervals).seconds:
            self._waits.labels(about.tier, mode).add_counts(intervals.waits, intervals.seconds)
            self._amortised.labels(about.tier, mode).add_counts(intervals.tokens, intervals.seconds)

    def _check_form(self, prompt: PromptEnded) -> None:
        """Count each answer once: one with tool calls by them, others by the grammar if there is one."""
        if "content_filter" in prompt.finish_reasons:
            return  # an output policy that ends an answer is not its fault
        mode, calls, grammar = prompt.stats.mode.mode, prompt.whole_calls, prompt.request.grammar
        for is_whole in calls:
            self._structured.labels("tool_calls", mode, "valid" if is_whole else "invalid").inc()
        if grammar is None:
            return
        num_others = len(prompt.finish_reasons) - len(calls)
        num_cut = min(num_others, max(0, prompt.finish_reasons.count("length") - calls.count(False)))
        for result, number in (("cut", num_cut), ("valid", num_others - num_cut)):
            if number > 0:
                self._structured.labels(grammar.kind, mode, result).inc(number)


def _waited_for(ended: RequestEnded) -> str:
    """Return the stage in which the deadline passed; `step`: one that was too long for the engine to say more."""
    late = [prompt.stats for prompt in ended.prompts if prompt.end in ("failed", "expired")]
    if not late:
        return "admission"
    if late[0].num_output_tokens:
        return "decode"
    return "prefill" if late[0].device.total else "queue" if late[0].queue_s else "step"
