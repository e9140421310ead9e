"""Decides which traces are kept: a sampled share, and, within a budget, those of requests that went wrong."""

import time
from collections.abc import Callable
from typing import Literal

from prolepsis.core.ended import FAILED, End, PromptEnded, RequestEnded
from prolepsis.core.reasons import EffectiveReason, PlainReason

Kept = Literal["sampled", "error", "fallback", "mismatch"]

_FALLBACKS: frozenset[EffectiveReason] = frozenset(
    {
        *("backoff", "breaker_open", "killed", "rolled_back", "pool_down", "decision_failed"),
        *("overload_plain", "overload_batch_waits", "overload_low_refused"),
    }
)
"""Why a request that was to speculate was decoded plainly: something failed, or a safeguard stopped it."""
_PLAIN_FALLBACKS: frozenset[PlainReason] = frozenset({"backoff", "breaker_open", "killed", "decision_failed"})


def is_in_share(trace_id: str, share: float) -> bool:
    """Return whether a new trace is sampled: by its id, as OpenTelemetry's samplers do, so that all servers agree."""
    return int(trace_id[16:], 16) < share * 2**64


def why_kept(ended: RequestEnded) -> Kept | None:
    """Return why the trace of a request is kept, None if it is not."""
    if ended.about.trace is not None and ended.about.trace.sampled:
        return "sampled"
    if is_error(ended.end) or any(is_error(prompt.end) for prompt in ended.prompts):
        return "error"
    return "fallback" if any(fallback_reasons(prompt) for prompt in ended.prompts) else None


def is_error(end: End) -> bool:
    """Return whether a request ended without its answer while its client waited, and was no faulty one."""
    return end in (*FAILED, "expired")


def fallback_reasons(prompt: PromptEnded) -> list[str]:
    """Return why steps of a request were plain though it was to speculate, by failures and safeguards."""
    if not prompt.request.speculation.enabled:
        return []
    stats = prompt.stats
    return sorted({*(stats.plain_steps.keys() & _PLAIN_FALLBACKS), *({stats.mode.reason} & _FALLBACKS)})


class SpanBudget:
    """Lets through `per_s` a second, up to `burst` at once."""

    def __init__(self, per_s: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_s, self._burst, self._clock = per_s, burst, clock
        self._left, self._at = float(burst), clock()

    def take(self) -> bool:
        """Return whether one more is within the budget, and count it if so."""
        now = self._clock()
        self._left, self._at = min(self._burst, self._left + (now - self._at) * self._per_s), now
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True
