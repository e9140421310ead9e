"""Whether the engine really generates: one token through all of it."""

import asyncio
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from uuid import uuid4

from prolepsis.core.events import Finished, Tokens
from prolepsis.core.requests import GenerateRequest, SpeculationChoice
from prolepsis.core.sampling_params import SamplingParams
from prolepsis.engine.client import EngineClient
from prolepsis.server.errors import describe_error

CACHED_S = 1.0
TIMEOUT_S = 10.0
SCOPE = "health"


@dataclass(frozen=True, slots=True)
class DeepHealth:
    healthy: bool
    detail: str
    ms: float
    """How long the token took."""


class DeepCheck:
    """Asks for one token; answers within a second of the last, and those that ask meanwhile, share one result."""

    def __init__(self, client: EngineClient, *, timeout_s: float = TIMEOUT_S) -> None:
        self._client = client
        self._timeout_s = timeout_s
        self._asking = asyncio.Lock()
        self._last: tuple[float, DeepHealth] | None = None

    async def result(self) -> DeepHealth:
        async with self._asking:
            if self._last is None or time.monotonic() - self._last[0] > CACHED_S:
                health = await self._ask()
                self._last = (time.monotonic(), health)
            return self._last[1]

    async def _ask(self) -> DeepHealth:
        started = time.monotonic()
        try:
            async with asyncio.timeout(self._timeout_s):
                detail = await self._one_token()
        except TimeoutError:
            detail = f"no token within {self._timeout_s:g} s"
        except Exception as error:  # a health check says what is wrong, whatever it is
            detail = describe_error(error).message
        ms = round(1000 * (time.monotonic() - started), 3)
        return DeepHealth(not detail, detail or "one token was generated", ms)

    async def _one_token(self) -> str:
        """Return what went wrong, or nothing."""
        request = GenerateRequest(
            request_id=f"health-{uuid4().hex}",
            prompt_token_ids=(0,),
            params=SamplingParams(temperature=0.0, max_tokens=1),
            priority=-(2**31),
            scope=SCOPE,
            speculation=SpeculationChoice(enabled=False),
        )
        num_tokens, finished = 0, False
        events = self._client.generate(request)
        try:
            async for event in events:
                num_tokens += len(event.token_ids) if isinstance(event, Tokens) else 0
                finished = isinstance(event, Finished)
        finally:
            if isinstance(events, AsyncGenerator):
                await events.aclose()
        return "" if finished and num_tokens else "the engine ended without a token"
