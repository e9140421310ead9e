"""One request in the pools: what its reader gets, what it is charged, and what speculation did for it."""

import asyncio
import time
from collections.abc import Sequence
from math import ceil

from prolepsis.adapters.upstream.api import Chunk
from prolepsis.adapters.upstream.route import PoolName, UpstreamRoute
from prolepsis.adapters.upstream.sample import UpstreamSample
from prolepsis.core.config import UPSTREAM
from prolepsis.core.continuation import Continued
from prolepsis.core.requests import GenerateRequest
from prolepsis.core.stats import (
    DeviceSeconds,
    EffectiveMode,
    GrowingCounts,
    JudgedDraft,
    Mode,
    ProposerCounts,
    RequestStats,
)
from prolepsis.engine.event_stream import EventStream

_MOST_JUDGED = 64
"""Judged drafts of a request; fewer stand for more."""
OTHER_POOL = "another pool went on after the tokens as after a prompt"
"""Why the rest of an answer may differ from what was to come."""


class UpstreamAnswer:
    """Belongs to one event loop."""

    def __init__(
        self, request: GenerateRequest, route: UpstreamRoute, plan_version: int, samples: Sequence[UpstreamSample]
    ) -> None:
        self.request = request
        self.route = route
        self.samples = samples
        self.stream = EventStream(request, time.monotonic())
        self.task: asyncio.Task[None] | None = None
        """That asks the pools."""
        self.aborted: str | None = None
        """Why it was ended from outside."""
        self._plan_version = plan_version
        self._served: set[PoolName] = set()
        self._device = DeviceSeconds()
        self._first_token_s: float | None = None
        self._num_cached = 0
        self._continued: list[Continued] = []

    def take(self, sample: UpstreamSample, chunk: Chunk, pool: PoolName) -> bool:
        """Take in what a pool says; return whether tokens came."""
        self._num_cached = max(self._num_cached, min(chunk.num_cached_tokens, len(self.request.prompt_token_ids)))
        event = sample.take(chunk)
        if event is None:
            return False
        if event.token_ids:
            self._served.add(pool)
            if self._first_token_s is None:
                self._first_token_s = time.monotonic() - self.stream.arrival
        self.stream.put(event)
        sample.told_at = time.monotonic()
        return bool(event.token_ids)

    def charge(self, prefill_s: float, decode_s: float) -> None:
        """Charge shares of a pool's time: until the first tokens, and from then on."""
        self._device.prefill += prefill_s
        self._device.plain += decode_s

    def continued(self, num_tokens: int, pause_s: float) -> None:
        """A pool was lost after `num_tokens` tokens of a sample, and another one went on with it.

        `pause_s`: from the last tokens of the lost one to the first of the other.
        """
        self._continued.append(Continued(loss="engine_dead", num_tokens=num_tokens, pause_s=pause_s))

    def stats(self) -> RequestStats:
        """Return the figures; what pools do not say is left out."""
        stats = self.stream.stats(time.monotonic())
        stats.arrival, stats.first_token_s = self.stream.arrival, self._first_token_s
        stats.prefill_s, stats.compute_s = self._first_token_s or 0.0, stats.total_s
        stats.num_cached_tokens, stats.device = self._num_cached, self._device
        stats.continued, stats.traffic_class = self._continued, self.request.traffic_class
        stats.not_exact = (OTHER_POOL,) if self._continued else ()
        drafts = self._drafts()
        if drafts is not None:
            if drafts.num_draft_tokens:
                stats.proposers = {UPSTREAM: drafts}
            stats.judged = {UPSTREAM: judged} if (judged := _judged(drafts)) else {}
            stats.num_steps = max(0, stats.num_output_tokens - drafts.num_accepted)
        stats.mode = self._mode(drafts)
        return stats

    def _drafts(self) -> ProposerCounts | None:
        """Return the sum over samples; none where only the plain pool served, None if it is not known."""
        if "speculating" not in self._served:
            return ProposerCounts()
        if self._continued:  # the pool that was lost did not say
            return None
        total = ProposerCounts()
        for sample in self.samples:
            if sample.drafts is None:
                return None
            total.add(sample.drafts)
        return total

    def _mode(self, drafts: ProposerCounts | None) -> EffectiveMode:
        version, wanted = self._plan_version, self.route.pool
        if not self._served:
            return EffectiveMode("off", "no_decode" if wanted == "speculating" else self.route.reason, version)
        is_on = "speculating" in self._served and (drafts is None or drafts.num_draft_tokens > 0)
        mode: Mode = "on" if is_on else "off"
        if wanted not in self._served:
            return EffectiveMode(mode, "pool_down", version)
        if wanted == "plain":
            return EffectiveMode(mode, self.route.reason, version)
        return EffectiveMode(
            mode, "not_reported" if drafts is None else "speculating" if is_on else "no_draft", version
        )


def evidence(drafts: ProposerCounts, num_draft_tokens: int) -> GrowingCounts:
    """Return what an answer's drafts, of at most `num_draft_tokens` tokens each, show of the pool's.

    Where an engine does not say how many first tokens were right, that is taken to be as many of as few drafts as
    there can be, so that no breaker opens for less than bad drafts. What drafts cost is not known.
    """
    if drafts.per_position:
        judged, right = drafts.per_position[0]
    else:
        judged = drafts.num_drafts or ceil(drafts.num_draft_tokens / max(1, num_draft_tokens))
        right = min(judged, drafts.num_accepted)
    return GrowingCounts(num_judged=judged, num_right=right)


def _judged(drafts: ProposerCounts) -> list[JudgedDraft]:
    """Return drafts of which as many are right as first tokens were, in no order."""
    for judged, right in drafts.per_position[:1]:
        number = min(judged, _MOST_JUDGED)
        return [JudgedDraft(i < round(number * right / judged), None) for i in range(number)]
    return []
