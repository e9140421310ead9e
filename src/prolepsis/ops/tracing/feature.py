"""Traces of the HTTP requests of one server: decides which are kept, and hands them to the exporter."""

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import get_args

from prometheus_client import CollectorRegistry

from prolepsis.core.ended import Keep, RequestAbout, RequestEnded
from prolepsis.core.recording import Replayed
from prolepsis.core.requests import GenerateRequest
from prolepsis.core.telemetry.declare import counter
from prolepsis.core.trace_context import TraceContext, first_span, new_trace_id
from prolepsis.ops.tracing.attributes import of_http
from prolepsis.ops.tracing.keep import Kept, SpanBudget, is_in_share, why_kept
from prolepsis.ops.tracing.otlp import OtlpExporter
from prolepsis.ops.tracing.spans import Span, replay_span, request_spans, server_span
from prolepsis.ops.tracing.traces import Traces

TAIL_PER_S, TAIL_BURST = 10.0, 50
"""Traces kept for errors, fallbacks and mismatches: a server whose requests all fail sends at most this many."""


class TracingFeature(Traces):
    """Belongs to one event loop."""

    def __init__(
        self,
        exporter: OtlpExporter,
        registry: CollectorRegistry,
        *,
        share: float = 0.01,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`share` (0 to 1) of the requests that carry no trace are sampled; the others say so themselves."""
        self._share = share
        self._exporter = exporter
        self._kept = counter(registry, "traces", "Traces that were to be sent, by why they are kept", "reason", most=4)
        self._lost = counter(registry, "traces_lost", "Traces that were kept and not queued", "reason", most=2)
        for kept in get_args(Kept):
            self._kept.labels(kept)
        for reason in ("over_budget", "queue_full"):
            self._lost.labels(reason)  # an alert on a rise needs the 0 before it
        self._budget = SpanBudget(TAIL_PER_S, TAIL_BURST, clock)

    def begin(self, caller: TraceContext | None) -> TraceContext:
        if caller is not None:
            return caller.child()
        trace_id = new_trace_id()
        return first_span(trace_id, sampled=is_in_share(trace_id, self._share))

    def keeps(self, about: RequestAbout, request: GenerateRequest) -> Keep:
        """Rounds are kept for every request, as the errors and fallbacks among them are known at the end only."""
        return Keep.ROUNDS

    def on_request_end(self, ended: RequestEnded) -> None:
        """Send the trace of a request that is sampled, or in which something went wrong."""
        trace, kept = ended.about.trace, why_kept(ended)
        if trace is not None and kept is not None:
            self._send(kept, partial(request_spans, ended, trace, kept))

    def on_http_end(self, trace: TraceContext, line: tuple[str, str], status: int, arrived: float) -> None:
        """Send the span of an HTTP request that the engine has not seen; `line`: its method, its route's pattern."""
        failed = status >= 500
        kept: Kept | None = "sampled" if trace.sampled else "error" if failed else None
        if kept is not None:
            times = (arrived, time.monotonic())
            span = server_span(trace, " ".join(line), times, of_http(*line, status, kept), failed=failed)
            self._send(kept, lambda: [span])

    def on_mismatch(self, ended: RequestEnded, request_id: str, replayed: Replayed, began: float) -> None:
        """Send the trace of a request whose replay, which began at `began` and ends now, had other tokens."""
        trace = ended.about.trace
        if trace is None:
            return
        span = replay_span(trace, request_id, replayed, (began, time.monotonic()))
        if why_kept(ended) is not None:  # the rest was sent when it ended
            self._send("mismatch", lambda: [span])
        else:
            self._send("mismatch", lambda: [*request_spans(ended, trace, "mismatch"), span])

    async def close(self) -> None:
        """Send what waits, for a few seconds at most."""
        await asyncio.to_thread(self._exporter.close)

    def _send(self, kept: Kept, trace: Callable[[], Sequence[Span]]) -> None:
        self._kept.labels(kept).inc()
        if kept != "sampled" and not self._budget.take():
            self._lost.labels("over_budget").inc()
        elif not self._exporter.offer(trace()):
            self._lost.labels("queue_full").inc()
