"""Spans of a request that has ended, made from its figures: nothing is measured for them while it runs.

    chat MODEL              the HTTP request, from its arrival until its answer is complete
    ├── queue               admission, then the engine's queue
    ├── prefill             until the first token
    └── decode
        ├── round           a draft that was verified; the first 64
        └── later rounds    the sum of the others

Of a request with several prompts each has a span `prompt` in between.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal

from prolepsis.core.ended import PromptEnded, RequestEnded
from prolepsis.core.recording import Replayed
from prolepsis.core.rounds import MAX_ROUNDS
from prolepsis.core.trace_context import TraceContext
from prolepsis.ops.tracing import attributes
from prolepsis.ops.tracing.attributes import Attributes
from prolepsis.ops.tracing.keep import Kept, is_error

Times = tuple[float, float]  # by `time.monotonic`
SpanName = Literal["prompt", "queue", "prefill", "decode", "round", "later rounds", "replay"]
"""Those of requests are `{operation} {model}`, those of other HTTP requests `{method} {route}`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A span that has ended; ids in hexadecimal."""

    trace_id: str
    span_id: str
    parent_id: str  # Empty: it is the first of its trace
    name: str
    kind: Literal["server", "internal"]
    times: Times
    attributes: Attributes
    failed: bool = False


def request_spans(ended: RequestEnded, trace: TraceContext, kept: Kept) -> Sequence[Span]:
    """Return the spans of a request, its own last; `kept` is why they are sent."""
    below: list[Span] = []
    for number, prompt in enumerate(ended.prompts):
        queued, first_token, until = _phases(prompt, ended)
        parent = trace.span_id
        if len(ended.prompts) > 1:
            values = attributes.of_prompt(prompt, ended)
            below.append(_below(trace, parent, "prompt", str(number), times=(queued[0], until), found=values))
            parent = below[-1].span_id
        if prompt.answer == "cached":
            continue
        request_id, stats = prompt.request.request_id, prompt.stats
        prefill = (queued[1], until if first_token is None else first_token)
        below.append(_below(trace, parent, "queue", request_id, times=queued, found={}))
        values = attributes.figures("prefill", stats)
        below.append(_below(trace, parent, "prefill", request_id, times=prefill, found=values))
        if first_token is not None:
            decode = _below(
                trace, parent, "decode", request_id, times=(first_token, until), found=attributes.of_decode(stats)
            )
            below += [decode, *_rounds(trace, decode, prompt)]
    values = attributes.of_request(ended, kept)
    first = min([ended.about.arrived or ended.ended_at, *(span.times[0] for span in below)])
    last = max([ended.ended_at, *(span.times[1] for span in below)])
    name = f"{values['gen_ai.operation.name']} {ended.about.model}"
    return [*below, server_span(trace, name, (first, last), values, failed=is_error(ended.end))]


def server_span(trace: TraceContext, name: str, times: Times, found: Attributes, *, failed: bool) -> Span:
    return Span(
        trace_id=trace.trace_id,
        span_id=trace.span_id,
        parent_id=trace.parent_id,
        name=name,
        kind="server",
        times=times,
        attributes=found,
        failed=failed,
    )


def replay_span(trace: TraceContext, request_id: str, replayed: Replayed, times: Times) -> Span:
    """Return the span of a replay that had other tokens, below the request that it repeats."""
    values = attributes.of_replay(request_id, replayed)
    return _below(trace, trace.span_id, "replay", request_id, times=times, found=values, failed=True)


def _below(
    trace: TraceContext,
    parent_id: str,
    name: SpanName,
    key: str,
    *,
    times: Times,
    found: Attributes,
    failed: bool = False,
) -> Span:
    """Return a span below a request's; its id is the same for the same name and key: one sent twice is still one."""
    return Span(
        trace_id=trace.trace_id,
        span_id=blake2b(f"{trace.span_id} {name} {key}".encode(), digest_size=8).hexdigest(),
        parent_id=parent_id,
        name=name,
        kind="internal",
        times=(times[0], max(times)),
        attributes=found,
        failed=failed,
    )


def _phases(prompt: PromptEnded, ended: RequestEnded) -> tuple[Times, float | None, float]:
    """Return when a prompt was queued, had its first token, and ended, by the engine.

    Where the engine reported no figures: by the arrival of its events.
    """
    stats = prompt.stats
    if prompt.answer not in ("complete", "cut") or not stats.arrival:
        return (prompt.began_at - prompt.waited_s, prompt.began_at), prompt.first_token_at, ended.ended_at
    first = None if stats.first_token_s is None else stats.arrival + stats.first_token_s
    started = stats.arrival + stats.queue_s if first is None else first - stats.prefill_s
    return (stats.arrival - prompt.waited_s, started), first, stats.arrival + stats.total_s


def _rounds(trace: TraceContext, decode: Span, prompt: PromptEnded) -> Sequence[Span]:
    stats, request_id, spans = prompt.stats, prompt.request.request_id, []
    for verified in stats.rounds:
        proposal = f"{request_id}/{verified.sample}/{verified.position}"
        times = (stats.arrival + verified.began, stats.arrival + verified.ended)
        values = attributes.of_round(verified, proposal)
        spans.append(_below(trace, decode.span_id, "round", proposal, times=times, found=values))
    if len(stats.rounds) == MAX_ROUNDS < stats.num_drafts:
        times = (stats.arrival + stats.rounds[-1].ended, decode.times[1])
        values = attributes.of_later_rounds(stats)
        spans.append(_below(trace, decode.span_id, "later rounds", request_id, times=times, found=values))
    return spans
