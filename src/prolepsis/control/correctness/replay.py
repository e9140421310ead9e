"""The replay of a recorded request: it is decoded again without speculation and compared."""

from collections.abc import AsyncGenerator
from dataclasses import replace

from prolepsis.core.engine_client import EngineClient
from prolepsis.core.errors import EngineError
from prolepsis.core.events import Aborted, Difference, Failed, Tokens
from prolepsis.core.recording import Recording, Replayed
from prolepsis.core.requests import SpeculationChoice

LAST = 2**31 - 1  # priority of replays: all other requests run first, and preempt them


async def replay(client: EngineClient, recorded: Recording, request_id: str) -> Replayed:
    """Decode a recorded request again without speculation, at the lowest priority, and compare token by token.

    The same prompt, seed, sampling, grammar and stops; no cached results are reused. A cancellation
    aborts it. Raises the engine's errors, and `EngineError` if it was aborted.
    """
    source = replace(
        recorded.request,
        request_id=request_id,
        params=replace(recorded.request.params, logprobs=None, prompt_logprobs=None),
        priority=LAST,
        deadline_s=None,
        traffic_class="",
        prediction_token_ids=(),
        speculation=SpeculationChoice("off"),
        emitted=recorded.tokens,
    )
    decoded, differences = [list[int]() for _ in range(source.n)], dict[int, Difference]()
    events = client.generate(source)
    try:
        async for event in events:
            if isinstance(event, Tokens):
                decoded[event.index] += event.token_ids
                if event.difference is not None:
                    differences[event.index] = event.difference
            elif isinstance(event, Failed):
                raise event.error
            elif isinstance(event, Aborted):
                raise EngineError(f"the replay was aborted: {event.reason}")
    finally:
        if isinstance(events, AsyncGenerator):
            await events.aclose()
    for index, (tokens, before) in enumerate(zip(decoded, recorded.tokens, strict=True)):
        if index not in differences and len(tokens) < len(before):
            differences[index] = Difference(len(tokens), before[len(tokens)], None, "structural")
    return Replayed(differences, tuple(map(tuple, decoded)))
