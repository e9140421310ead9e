"""Bands of answers, by what caches held of them and by their length: what either does to drafts."""

from typing import Literal

from prolepsis.core.ended import PromptEnded, RequestAbout

Band = Literal[
    "response_cache",  # the answer is a stored one
    "front_cache",  # a cache in front says that it had an answer
    "cached_none",  # of the prompt, the prefix cache had nothing
    "cached_under_half",
    "cached_half_or_more",
    "answer_to_64",  # tokens of the answer
    "answer_to_500",
    "answer_over_500",
]


def length_band(num_tokens: float) -> Band:
    """Return the band of an answer by its tokens."""
    return "answer_to_64" if num_tokens <= 64 else "answer_to_500" if num_tokens <= 500 else "answer_over_500"


def bands_of(about: RequestAbout, prompt: PromptEnded) -> tuple[Band, ...]:
    """Return an answer's band by caches, and one by the mean length of its samples if an engine told of them."""
    stats = prompt.stats
    if prompt.answer == "cached":
        return ("response_cache",)
    if prompt.answer == "unreported":
        return ()
    by_length = length_band(stats.num_output_tokens / prompt.request.n)
    if about.front_cache:
        return "front_cache", by_length
    if not stats.num_cached_tokens:
        return "cached_none", by_length
    is_half = 2 * stats.num_cached_tokens >= stats.num_prompt_tokens
    return "cached_half_or_more" if is_half else "cached_under_half", by_length
