"""Tries a draft head on the shipped prompts: how many of its draft tokens its target accepts."""

from collections.abc import Sequence
from dataclasses import dataclass

from prolepsis.core.engine_client import EngineClient
from prolepsis.core.requests import GenerateRequest, SamplingParams, SpeculationChoice
from prolepsis.core.stats import ProposerCounts
from prolepsis.core.terminal.config import Settings
from prolepsis.lab.measure.prompts import EncodedPrompt, encode_prompts, load_prompts
from prolepsis.server.cli.ask import ask

PROPOSER = "draft_head"
MAX_TOKENS = 32
"""Of an answer: enough for some ten drafts."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What a head's drafts came to with a model."""

    model: str
    num_prompts: int
    num_drafts: int
    num_draft_tokens: int
    num_accepted: int

    def describe(self) -> str:
        """Return it in words."""
        if not self.num_draft_tokens:
            return f"tried with {self.model} on {self.num_prompts} prompts: it drafted nothing"
        rate, length = self.num_accepted / self.num_draft_tokens, 1 + self.num_accepted / self.num_drafts
        return (
            f"tried with {self.model} on {self.num_prompts} prompts: {rate:.1%} of {self.num_draft_tokens:,} "
            f"draft tokens accepted, {length:.2f} tokens a step with a draft"
        )


async def tried(settings: Settings) -> Trial:
    """Return what the configured head's drafts come to with the configured model; raises what a start raises."""
    from prolepsis.server.cli.engine import running

    async with running(settings) as engine:
        prompts = encode_prompts(load_prompts(None), engine.tokenizer)
        return await trial(engine.client, prompts, settings.engine.model)


async def trial(client: EngineClient, prompts: Sequence[EncodedPrompt], model: str) -> Trial:
    """Decode greedily with drafts of the head only, one prompt after the other."""
    total = ProposerCounts()
    for number, prompt in enumerate(prompts):
        request = GenerateRequest(
            request_id=f"trial {number}",
            prompt_token_ids=prompt.token_ids,
            params=SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS),
            cache_salt="trial",
            speculation=SpeculationChoice("always", proposers=(PROPOSER,)),
        )
        answer = await ask(client, request)
        total.add(answer.stats.proposers.get(PROPOSER, ProposerCounts()))
    return Trial(model, len(prompts), total.num_drafts, total.num_draft_tokens, total.num_accepted)
