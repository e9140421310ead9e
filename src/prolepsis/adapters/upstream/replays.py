"""Shadow on engines that cannot draft unseen: some requests are asked again of the pool that speculates.

The reader has the plain pool's answer by then; that of a replay is thrown away, and what the pool says of its drafts is
kept.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace

import structlog

from prolepsis.adapters.upstream.pool import PoolBusy, PoolLost
from prolepsis.core.errors import ProlepsisError
from prolepsis.core.requests import GenerateRequest

SHARE = 0.05
"""Most of the time in which a replay may run; there is one at once."""
MOST_TOKENS = 256
LONGEST_S = 60.0

log = structlog.get_logger(__name__)


class Replays:
    """Belongs to one event loop."""

    def __init__(
        self, replay: Callable[[GenerateRequest], Awaitable[None]], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`replay` has a request of one sample answered, and raises as a pool does."""
        self._replay = replay
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self._next_at = 0.0

    def offer(self, request: GenerateRequest) -> None:
        """Replay a request if the budget has room; else it is forgotten."""
        if self._task is None and self._clock() >= self._next_at:
            params = replace(request.params, max_tokens=min(request.params.max_tokens, MOST_TOKENS))
            self._task = asyncio.create_task(self._run(replace(request, params=params, n=1)))

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self, request: GenerateRequest) -> None:
        began = self._clock()
        try:
            with suppress(PoolLost, PoolBusy, TimeoutError):
                async with asyncio.timeout(LONGEST_S):
                    await self._replay(request)
        except ProlepsisError as error:
            log.warning("upstream_replay_refused", reason=str(error))
        finally:
            now = self._clock()
            self._next_at, self._task = now + (now - began) * (1.0 / SHARE - 1.0), None
