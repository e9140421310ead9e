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
from prolepsis.ops.tracing import attributes, names
from prolepsis.ops.tracing.attributes import Attributes
from prolepsis.ops.tracing.keep import Kept, is_error

Interval = tuple[float, float]
"""By `time.monotonic`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A span that has ended; ids in hexadecimal."""

    trace_id: str
    span_id: str
    parent_id: str
    """Empty: it is the first of its trace."""
    name: str
    kind: Literal["server", "internal"]
    times: Interval
    attributes: Attributes
    failed: bool = False


def request_spans(ended: RequestEnded, trace: TraceContext, kept: Kept) -> Sequence[Span]:
    """Return the spans of a request, its own last; `kept` is why they are sent."""
    about, below = ended.about, _Below(trace)
    for number, prompt in enumerate(ended.prompts):
        phases = _phases(prompt, ended)
        parent = trace.span_id
        if len(ended.prompts) > 1:
            times = (phases.queued[0], phases.ended)
            parent = below.add(names.SPAN_PROMPT, str(number), parent, times, _of_prompt(prompt, ended))
        if prompt.answer != "cached":
            _add_phases(below, prompt, parent, phases)
    found = attributes.of_request(ended, kept)
    first = min([about.arrived or ended.ended_at, *(span.times[0] for span in below.spans)])
    last = max([ended.ended_at, *(span.times[1] for span in below.spans)])
    name = f"{found[names.OPERATION]} {about.model}"
    return [*below.spans, server_span(trace, name, (first, last), found, failed=is_error(ended.end))]


def server_span(trace: TraceContext, name: str, times: Interval, found: Attributes, *, failed: bool) -> Span:
    """Return the span of an HTTP request."""
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


def replay_span(trace: TraceContext, request_id: str, replayed: Replayed, times: Interval) -> Span:
    """Return the span of a replay that had other tokens, below the request that it repeats."""
    below = _Below(trace)
    found = attributes.of_replay(request_id, replayed)
    below.add(names.SPAN_REPLAY, request_id, trace.span_id, times, found, failed=True)
    return below.spans[0]


class _Below:
    """The spans below a request's."""

    def __init__(self, trace: TraceContext) -> None:
        self.spans: list[Span] = []
        self._trace = trace

    def add(
        self, name: str, key: str, parent_id: str, times: Interval, found: Attributes, *, failed: bool = False
    ) -> str:
        """Add a span and return its id: the same for the same name and key, so that one sent twice is still one."""
        trace = self._trace
        span_id = blake2b(f"{trace.span_id} {name} {key}".encode(), digest_size=8).hexdigest()
        self.spans.append(
            Span(
                trace_id=trace.trace_id,
                span_id=span_id,
                parent_id=parent_id,
                name=name,
                kind="internal",
                times=(times[0], max(times)),
                attributes=found,
                failed=failed,
            )
        )
        return span_id


def _of_prompt(prompt: PromptEnded, ended: RequestEnded) -> Attributes:
    return {**attributes.of_prompt(prompt), **attributes.of_stages(prompt, ended)}


@dataclass(frozen=True, slots=True)
class _Phases:
    """When the parts of a prompt began and ended."""

    queued: Interval
    first_token: float | None
    ended: float


def _phases(prompt: PromptEnded, ended: RequestEnded) -> _Phases:
    """Return a prompt's phases by the engine; where it reported none, by the arrival of its events."""
    stats = prompt.stats
    if prompt.answer not in ("complete", "cut") or not stats.arrival:
        since = prompt.began_at - prompt.waited_s
        return _Phases((since, prompt.began_at), prompt.first_token_at, ended.ended_at)
    first = None if stats.first_token_s is None else stats.arrival + stats.first_token_s
    started = stats.arrival + stats.queue_s if first is None else first - stats.prefill_s
    return _Phases((stats.arrival - prompt.waited_s, started), first, stats.arrival + stats.total_s)


def _add_phases(below: _Below, prompt: PromptEnded, parent: str, phases: _Phases) -> None:
    request_id, stats, first = prompt.request.request_id, prompt.stats, phases.first_token
    below.add(names.SPAN_QUEUE, request_id, parent, phases.queued, {})
    prefill = (phases.queued[1], phases.ended if first is None else first)
    below.add(names.SPAN_PREFILL, request_id, parent, prefill, attributes.of_prefill(stats))
    if first is not None:
        decode = (first, phases.ended)
        span_id = below.add(names.SPAN_DECODE, request_id, parent, decode, attributes.of_decode(stats))
        _add_rounds(below, prompt, span_id, phases.ended)


def _add_rounds(below: _Below, prompt: PromptEnded, parent: str, until: float) -> None:
    stats, request_id = prompt.stats, prompt.request.request_id
    for one in stats.rounds:
        proposal = f"{request_id}/{one.sample}/{one.position}"
        times = (stats.arrival + one.began, stats.arrival + one.ended)
        below.add(names.SPAN_ROUND, proposal, parent, times, attributes.of_round(one, proposal))
    if len(stats.rounds) == MAX_ROUNDS < stats.num_drafts:
        times = (stats.arrival + stats.rounds[-1].ended, until)
        below.add(names.SPAN_LATER_ROUNDS, request_id, parent, times, attributes.of_later_rounds(stats))
