"""What a finished request shows of itself to the rollout that it was part of."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from prolepsis.api.deltas import Delta
from prolepsis.api.openai.prepared import Admitted
from prolepsis.core.errors import EngineError
from prolepsis.core.stats import EffectiveReason, ProposerCounts, RequestStats
from prolepsis.rollout.runtime import Rollouts
from prolepsis.web.errors import RequestAborted

_STOPPED: tuple[EffectiveReason, ...] = (
    "killed",
    "plan_off",
    "overload_plain",
    "overload_batch_waits",
    "overload_low_refused",
)
"""Something else than its rule kept the request plain: how far drafts would have got is not known."""


class Observation:
    """Gathers one request's answer as it is told."""

    def __init__(self, *, structured: bool) -> None:
        self.stats: list[RequestStats] = []
        """Of its prompts that have ended."""
        self._structured = structured
        self._cut = False

    def see(self, part: Delta | RequestStats) -> None:
        if isinstance(part, RequestStats):
            self.stats.append(part)
        elif part.finish_reason == "length":
            self._cut = True
        elif part.finish_reason == "content_filter":  # an output policy's doing, whoever drafted
            self._structured = False

    @property
    def decoded(self) -> bool:
        """Whether an engine decoded all of it; a stored answer shows nothing."""
        return bool(self.stats) and all(stats.mode.reason != "response_cache" for stats in self.stats)

    def values(self) -> dict[str, float]:
        """Return what is measured of the whole answer; of a form that was cut short nothing is valid."""
        values = values_of(self.stats)
        return values | {"validity": float(not self._cut)} if self._structured else values


def values_of(stats: Sequence[RequestStats]) -> dict[str, float]:
    """Return a request's values by `control.metrics.Value`, from the counts of its prompts; the longest time in ms."""
    values: dict[str, float] = {"error": 0.0, "latency_ms": 1000.0 * max(s.total_s for s in stats)}
    counts: list[ProposerCounts] = [c for s in stats for c in (*s.proposers.values(), *s.shadow.values())]
    drafted = sum(c.num_draft_tokens for c in counts)
    if drafted:
        values["acceptance"] = sum(c.num_accepted for c in counts) / drafted
    num_steps = sum(s.num_steps for s in stats)
    if num_steps and not any(s.mode.reason in _STOPPED for s in stats):
        values["acceptance_length"] = sum(s.num_output_tokens for s in stats) / num_steps
    firsts = [s.first_token_s for s in stats if s.first_token_s is not None]
    if firsts:
        values["first_token_ms"] = 1000.0 * max(firsts)
    between = [
        (s.total_s - s.first_token_s) / (s.num_output_tokens - 1)
        for s in stats
        if s.first_token_s is not None and s.num_output_tokens > 1
    ]
    if between:
        values["latency_per_token_ms"] = 1000.0 * max(between)
    num_tokens, device_s = sum(s.num_output_tokens for s in stats), sum(s.device.total for s in stats)
    if num_tokens and device_s:
        values["device_ms_per_token"] = 1000.0 * device_s / num_tokens
    return values


@contextmanager
def observed(rollouts: Rollouts | None, admitted: Admitted) -> Iterator[Observation]:
    """Tell `rollouts` what became of a request while it was answered.

    One that its client left, or that a shutdown ended, counts for the arm and shows nothing; one that was refused does
    not count.
    """
    pin = admitted.speculation.observed
    observation = Observation(structured=any(request.grammar is not None for request in admitted.requests))
    if rollouts is None or pin is None:
        yield observation
        return
    try:
        yield observation
    except RequestAborted:
        rollouts.observe(pin, {})
        raise
    except EngineError:
        rollouts.observe(pin, {"error": 1.0})
        raise
    except (asyncio.CancelledError, GeneratorExit):
        rollouts.observe(pin, {})
        raise
    if observation.decoded:
        rollouts.observe(pin, observation.values())
