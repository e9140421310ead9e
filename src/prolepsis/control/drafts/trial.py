"""Tries a draft head on given prompts: how many tokens a pass its drafts bring, before traffic shows it."""

import asyncio
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Self
from uuid import uuid4

from prolepsis.core.ask import ask
from prolepsis.core.config import HeadProposerName
from prolepsis.core.engine_client import EngineClient
from prolepsis.core.requests import UNCOUNTED_CLASS, GenerateRequest, SamplingParams, SpeculationChoice
from prolepsis.core.stats import ProposerCounts

MAX_TOKENS, MAX_DRAFT_TOKENS = 32, 4
"""Of an answer, enough for some ten drafts, and of a draft: verifying takes time of the requests in the same pass."""
_SILENT = 2  # answers without a draft after which it is not asked any more: it may not draft now
_MUCH, _NOTHING = 0.5, 0.1
"""Much worse: surely below this share of the accepted tokens a draft of the head before, or below so many."""

Prompts = Sequence[Sequence[int]]
Phases = Sequence[tuple[int, float]]
"""Priorities of the requests, each with the seconds for which it is tried."""
BRIEFLY: Phases = ((0, 3.0),)
IN_THE_BACKGROUND: Phases = ((2**31 - 1, 5.0), (0, 30.0))
"""Behind all requests at first; under load that leaves no room, as one request among the others."""


@dataclass(frozen=True, slots=True)
class HeadTrial:
    """What a head's drafts came to."""

    num_prompts: int
    num_drafts: int
    num_draft_tokens: int
    num_accepted: int
    most_accepted: float
    """Upper bound of 95 % on accepted tokens a draft: of the mean, wider by what so many drafts cannot show."""

    @classmethod
    def of(cls, num_prompts: int, counts: ProposerCounts) -> Self:
        number = max(1, counts.num_drafts)
        mean = counts.num_accepted / number
        square = sum((2 * j + 1) * accepted for j, (_, accepted) in enumerate(counts.per_position)) / number
        bound = mean + 1.96 * math.sqrt(max(0.0, square - mean**2) / number) + 3.0 / number
        return cls(num_prompts, counts.num_drafts, counts.num_draft_tokens, counts.num_accepted, bound)

    @property
    def accepted(self) -> float:
        """Accepted tokens a draft."""
        return self.num_accepted / max(1, self.num_drafts)

    def is_much_worse(self, before: "HeadTrial | None") -> bool:
        """Return whether it brings next to nothing, or much less than the head before."""
        return self.most_accepted < max(_NOTHING, _MUCH * before.accepted if before else 0.0)

    def describe(self) -> str:
        if not self.num_draft_tokens:
            return f"it drafted nothing on {self.num_prompts} prompts"
        rate = self.num_accepted / self.num_draft_tokens
        return (
            f"{1 + self.accepted:.2f} tokens a pass with a draft on {self.num_prompts} prompts, {rate:.1%} of "
            f"{self.num_draft_tokens:,} draft tokens accepted"
        )


async def try_head(client: EngineClient, prompts: Prompts, proposer: HeadProposerName, phases: Phases) -> HeadTrial:
    """Decode greedily with drafts of a head only, one prompt after the other; raises the engine's errors."""
    most, total = client.info.max_model_len - MAX_TOKENS, ProposerCounts()
    choice = SpeculationChoice("always", num_speculative_tokens=MAX_DRAFT_TOKENS, proposers=(proposer,))
    asked, fitting = 0, [tuple(prompt) for prompt in prompts if len(prompt) <= most]
    for priority, seconds in phases:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while asked < len(fitting) and (total.num_drafts or asked < _SILENT):
                    request = GenerateRequest(
                        request_id=f"trial-{uuid4().hex}",
                        prompt_token_ids=fitting[asked],
                        params=SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS),
                        priority=priority,
                        cache_salt="trial",
                        traffic_class=UNCOUNTED_CLASS,
                        speculation=choice,
                    )
                    answer = await ask(client, request)
                    total.add(answer.stats.proposers.get(proposer, ProposerCounts()))
                    asked += 1
    return HeadTrial.of(asked, total)
