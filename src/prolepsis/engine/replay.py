"""Decodes a request again, plainly, and says where that leaves what was emitted before."""

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from prolepsis.core.errors import EngineError
from prolepsis.core.events import Aborted, Difference, Failed, Tokens
from prolepsis.core.requests import SpeculationChoice
from prolepsis.engine.client import EngineClient
from prolepsis.engine.recording import Recording

LAST = 2**31 - 1
"""Priority of replays: everything else runs first, and takes their places."""
Outcome = Literal["match", "near_tie", "structural"]


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay showed."""

    differences: Mapping[int, Difference]
    """The first of each sample that has one."""
    num_tokens: int
    """Decoded."""

    @property
    def outcome(self) -> Outcome:
        kinds = {difference.kind for difference in self.differences.values()}
        return "structural" if "structural" in kinds else "near_tie" if kinds else "match"

    @property
    def first(self) -> tuple[int, Difference] | None:
        """Sample and difference that are to be looked at first: a structural one where there is one."""
        found = sorted(self.differences.items(), key=lambda item: (item[1].kind != "structural", item[0]))
        return found[0] if found else None


async def replay(client: EngineClient, recorded: Recording, request_id: str) -> Replayed:
    """Decode a recorded request again without speculation, behind everything else, and compare token by token.

    The same prompt, seed, sampling, grammar and stops; nothing that was computed before is reused. Being cancelled
    aborts it. Raises what the engine raises, `EngineError` where it was aborted.
    """
    source = replace(
        recorded.request,
        request_id=request_id,
        params=replace(recorded.request.params, logprobs=None),
        priority=LAST,
        deadline_s=None,
        slice="",
        prediction_token_ids=(),
        speculation=SpeculationChoice(enabled=False),
        emitted=recorded.tokens,
    )
    lengths, differences = [0] * source.n, dict[int, Difference]()
    events = client.generate(source)
    try:
        async for event in events:
            if isinstance(event, Tokens):
                lengths[event.index] += len(event.token_ids)
                if event.difference is not None:
                    differences[event.index] = event.difference
            elif isinstance(event, Failed):
                raise event.error
            elif isinstance(event, Aborted):
                raise EngineError(f"the replay was aborted: {event.reason}")
    finally:
        if isinstance(events, AsyncGenerator):
            await events.aclose()
    for index, (length, before) in enumerate(zip(lengths, recorded.tokens, strict=True)):
        if index not in differences and length < len(before):
            differences[index] = Difference(length, before[length], None, "structural")
    return Replayed(differences, sum(lengths))
