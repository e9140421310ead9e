"""Tries a draft head on the shipped prompts: how many of its draft tokens its target accepts."""

from collections.abc import Sequence

from prolepsis.control.drafts.trial import HeadTrial, try_head
from prolepsis.core.terminal.config import Settings
from prolepsis.engine.text.tokenizer import ChatTokenizer
from prolepsis.lab.measure.prompts import encode_prompts, load_prompts


def shipped_prompts(tokenizer: ChatTokenizer) -> Sequence[Sequence[int]]:
    """Return the token ids of the shipped prompts."""
    return [prompt.token_ids for prompt in encode_prompts(load_prompts(None), tokenizer)]


async def tried(settings: Settings) -> HeadTrial:
    """Return what the configured head's drafts come to with the configured model; raises what a start raises."""
    from prolepsis.server.cli.engine import running

    async with running(settings) as engine:
        return await try_head(engine.client, shipped_prompts(engine.tokenizer))
