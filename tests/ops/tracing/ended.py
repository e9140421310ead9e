"""Requests that have ended, for tests of their traces."""

from collections.abc import Sequence
from dataclasses import replace

from prolepsis.core.ended import End, PromptEnded, RequestAbout, RequestEnded
from prolepsis.core.reasons import EffectiveReason
from prolepsis.core.requests import GenerateRequest, SamplingParams
from prolepsis.core.rounds import Round
from prolepsis.core.stats import EffectiveMode, ProposerCounts, RequestStats
from prolepsis.core.trace_context import TraceContext

TRACE = TraceContext("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7", sampled=True)
NOT_SAMPLED = replace(TRACE, sampled=False)
ARRIVAL = 1000.0
"""At the engine; 0.25 s after the server had it, 0.125 s before it started."""


def round_at(began: float, *, accepted: int = 2, position: int = 1) -> Round:
    return Round(began, began + 0.01, 0.001, 0.007, 0.001, 0, position, "suffix", "", 3, 3, accepted, accepted + 1)


def prompt_ended(
    request_id: str = "r",
    *,
    end: End = "finished",
    rounds: Sequence[Round] = (),
    reason: EffectiveReason = "speculating",
) -> PromptEnded:
    """Return a prompt of 7 tokens with an answer of 20, the first of them 0.5 s after its arrival, all after 1 s."""
    stats = RequestStats(
        num_prompt_tokens=7,
        num_cached_tokens=4,
        num_output_tokens=20,
        num_steps=9,
        proposers={"suffix": ProposerCounts(len(rounds), 3 * len(rounds), sum(one.num_accepted for one in rounds))},
        rounds=list(rounds),
        arrival=ARRIVAL,
        queue_s=0.125,
        compute_s=0.875,
        first_token_s=0.5,
        prefill_s=0.375,
        total_s=1.0,
        mode=EffectiveMode("on", reason, 3),
    )
    return PromptEnded(
        request=GenerateRequest(request_id, (1,) * 7, SamplingParams(seed=5)),
        end=end,
        error="engine_error" if end == "failed" else None,
        stats=stats,
        num_shown_tokens=20,
        answer="complete" if end == "finished" else "cut",
        tokens=(),
        finish_reasons=("stop",),
        delivery={},
        waited_s=0.125,
        began_at=ARRIVAL,
        first_token_at=ARRIVAL + 0.5,
    )


def request_ended(*prompts: PromptEnded, end: End = "finished", trace: TraceContext | None = TRACE) -> RequestEnded:
    about = RequestAbout(
        answer_id="chatcmpl-1",
        tenant="acme",
        key_id="k1",
        tier="standard",
        route="/v1/chat/completions",
        model="tiny",
        policy_rule="chat",
        policy_version="7",
        stream=True,
        arrived=ARRIVAL - 0.25,
        trace=trace,
    )
    error = "engine_error" if end == "failed" else None
    return RequestEnded(about=about, end=end, error=error, prompts=prompts, ended_at=ARRIVAL + 1.25)
