"""The deep health check: asks the engine for some tokens as a client does, in the mode that clients get by default."""

import asyncio
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from uuid import uuid4

from prolepsis.control.web.errors import describe_error
from prolepsis.core.engine_client import EngineClient
from prolepsis.core.events import Failed, Finished, Tokens
from prolepsis.core.requests import UNCOUNTED_CLASS, GenerateRequest, SamplingParams

CACHED_S = 1.0
TIMEOUT_S = 10.0
NUM_TOKENS = 8
"""The first comes from the prompt's pass; those after it may have drafts."""
SCOPE = "health"


@dataclass(frozen=True, slots=True)
class DeepHealth:
    healthy: bool
    detail: str
    ms: float
    """Time that the tokens took."""


class DeepCheck:
    """Asks for a few tokens; answers within a second of the last, and those that ask meanwhile, share one result."""

    def __init__(self, client: EngineClient, *, timeout_s: float = TIMEOUT_S, cached_s: float = CACHED_S) -> None:
        self._client = client
        self._timeout_s = timeout_s
        self._cached_s = cached_s
        self._asking = asyncio.Lock()
        self._last: tuple[float, DeepHealth] | None = None

    async def result(self) -> DeepHealth:
        async with self._asking:
            if self._last is None or time.monotonic() - self._last[0] > self._cached_s:
                started, detail, num_tokens = time.monotonic(), "", 0
                try:
                    async with asyncio.timeout(self._timeout_s):
                        num_tokens = await self._count_tokens()
                except TimeoutError:
                    detail = f"not {NUM_TOKENS} tokens within {self._timeout_s:g} s"
                except Exception as error:  # a health check reports every failure
                    detail = str(describe_error(error))
                else:
                    detail = "" if num_tokens else "the engine ended without a token"
                ms = round(1000 * (time.monotonic() - started), 3)
                health = DeepHealth(not detail, detail or f"{num_tokens} tokens were generated", ms)
                self._last = (time.monotonic(), health)
            return self._last[1]

    async def _count_tokens(self) -> int:
        """Return how many tokens the engine generated; 0 if it did not finish. Raises the error that it failed with."""
        request = GenerateRequest(
            request_id=f"health-{uuid4().hex}",
            prompt_token_ids=(0,),
            params=SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True),
            priority=-(2**31),
            cache_salt=SCOPE,
            traffic_class=UNCOUNTED_CLASS,
        )
        num_tokens, finished = 0, False
        events = self._client.generate(request)
        try:
            async for event in events:
                if isinstance(event, Failed):
                    raise event.error
                num_tokens += len(event.token_ids) if isinstance(event, Tokens) else 0
                finished = isinstance(event, Finished)
        finally:
            if isinstance(events, AsyncGenerator):
                await events.aclose()
        return num_tokens if finished else 0
