"""Served requests that wait for their replay: bounded in number and tokens, and counted if they are dropped."""

import asyncio
from collections import Counter, deque
from dataclasses import dataclass
from typing import Literal, get_args

from prometheus_client import CollectorRegistry

from prolepsis.core.ended import RequestAbout, RequestEnded
from prolepsis.core.recording import Recording
from prolepsis.core.stats import EffectiveMode
from prolepsis.core.telemetry.declare import counter, gauge

MAX_QUEUED_TOKENS = 500_000
"""Most tokens of waiting prompts and answers: this bounds the queue's memory to about 30 MB."""
ReplayDrop = Literal["queue_full", "interrupted", "closed"]
DROPS: tuple[ReplayDrop, ...] = get_args(ReplayDrop)


@dataclass(frozen=True, slots=True)
class ServedRequest:
    recorded: Recording
    ended: RequestEnded  # the HTTP request that it belongs to, without tokens
    number: int  # among the prompts of that
    num_tries: int = 0

    @property
    def about(self) -> RequestAbout:
        return self.ended.about

    @property
    def mode(self) -> EffectiveMode:
        return self.ended.prompts[self.number].stats.mode

    @property
    def counts(self) -> bool:
        """It is evidence for its rollout; of a request's prompts only the first is."""
        return self.about.is_evidence and self.number == 0

    @property
    def request_id(self) -> str:
        return self.recorded.request.request_id


class ReplayQueue:
    """Belongs to one event loop."""

    def __init__(self, max_queued: int, registry: CollectorRegistry) -> None:
        self.dropped: Counter[ReplayDrop] = Counter()
        self._max_queued = max_queued
        self._waiting: deque[ServedRequest] = deque()
        self._num_tokens = 0
        self._arrived = asyncio.Event()
        text = "Requests drawn for a replay that were not replayed"
        self._metric = counter(registry, "replay_dropped", text, "reason")
        self._queued = gauge(registry, "replay_queued", "Requests that wait for their replay")

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, served: ServedRequest) -> None:
        """Append a request, or drop it if there is no room."""
        num_tokens = served.recorded.num_tokens
        if len(self) >= self._max_queued or self._num_tokens + num_tokens > MAX_QUEUED_TOKENS:
            self.drop("queue_full")
            return
        self._waiting.append(served)
        self._changed(num_tokens)

    async def wait(self) -> None:
        """Wait until there is a request."""
        await self._arrived.wait()

    def pop(self) -> ServedRequest:
        """Remove the request that has waited longest, and return it."""
        served = self._waiting.popleft()
        self._changed(-served.recorded.num_tokens)
        return served

    def drop(self, reason: ReplayDrop, number: int = 1) -> None:
        """Count requests that will not be replayed."""
        if number:
            self.dropped[reason] += number
            self._metric.labels(reason).inc(number)

    def close(self) -> None:
        """Drop all requests."""
        self.drop("closed", len(self))
        self._waiting.clear()

    def _changed(self, num_tokens: int) -> None:
        self._num_tokens += num_tokens
        self._queued.set(len(self))
        (self._arrived.set if self._waiting else self._arrived.clear)()
