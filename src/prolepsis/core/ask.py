"""One request to an engine, awaited to its end."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from prolepsis.core.engine_client import EngineClient
from prolepsis.core.errors import EngineError
from prolepsis.core.events import Failed, Finished, Tokens
from prolepsis.core.requests import GenerateRequest
from prolepsis.core.stats import RequestStats


@dataclass(frozen=True, slots=True)
class TimedAnswer:
    """The answer to a request of one sequence; times in seconds, measured by the client."""

    token_ids: tuple[int, ...]
    seconds: float
    first_token_s: float | None
    stats: RequestStats


async def ask(
    client: EngineClient, request: GenerateRequest, show: Callable[[Tokens], None] = lambda event: None
) -> TimedAnswer:
    """Return the answer to `request`, its tokens shown as they come.

    Raises the error of a failed request, `EngineError` for an aborted one.
    """
    started = time.perf_counter()
    tokens: list[int] = []
    first: float | None = None
    async for event in client.generate(request):
        if isinstance(event, Tokens):
            first = first if first is not None or not event.token_ids else time.perf_counter() - started
            tokens += event.token_ids
            show(event)
        elif isinstance(event, Finished):
            return TimedAnswer(tuple(tokens), time.perf_counter() - started, first, event.stats)
        elif isinstance(event, Failed):
            raise event.error
        else:
            raise EngineError(f"request {request.request_id} was aborted: {event.reason}")
    raise EngineError(f"request {request.request_id} ended without a terminal event")
