"""The values of a request that has ended, for the rollout that it was part of."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from prolepsis.core.ended import PromptEnded, RequestEnded
from prolepsis.core.reasons import STOPPED
from prolepsis.core.stats import ProposerCounts


def observed(ended: RequestEnded) -> Mapping[str, float] | None:
    """Return what a request shows, by what is measured; None: it does not count.

    A request that its client left, or that a shutdown ended, counts for its arm and shows nothing. A request that was
    refused, or whose answer is broken, does not count, nor does one with a stored answer.
    """
    if ended.end in ("refused", "broken"):
        return None
    if ended.end in ("failed", "expired"):  # else the requests of an arm that is too slow for them would be missing
        return {"error": 1.0}
    if ended.end != "finished":
        return {}
    prompts = ended.prompts
    if not prompts or any(prompt.answer == "cached" for prompt in prompts):
        return None
    values = values_of([_shown(prompt) for prompt in prompts])
    forms = [prompt.kept_form for prompt in prompts]
    if None not in forms:
        values["validity"] = float(all(forms))
    calls = [whole for prompt in prompts for whole in prompt.whole_calls]
    is_stopped = any("content_filter" in prompt.finish_reasons for prompt in prompts)  # by an output policy
    if calls and not is_stopped:
        values["tool_calls"] = float(all(calls))
    return values


def _shown(prompt: PromptEnded) -> PromptEnded:
    """Return a prompt without the tokens after the one at which an output policy stopped its answer."""
    if prompt.num_shown_tokens is None:
        return prompt
    return replace(prompt, stats=replace(prompt.stats, num_output_tokens=prompt.num_shown_tokens))


def values_of(prompts: Sequence[PromptEnded]) -> dict[str, float]:
    """Return a request's values by `rollout_terms.Value`, from the counts of its prompts; the longest time in ms."""
    stats = [prompt.stats for prompt in prompts]
    values: dict[str, float] = {"error": 0.0, "latency_ms": 1000.0 * max(s.total_s for s in stats)}
    counts: list[ProposerCounts] = [c for s in stats for c in (*s.proposers.values(), *s.shadow.values())]
    drafted = sum(c.num_draft_tokens for c in counts)
    if drafted:
        values["acceptance"] = sum(c.num_accepted for c in counts) / drafted
    num_steps = sum(s.num_steps for s in stats)
    if num_steps and not any(s.mode.reason in STOPPED for s in stats):
        values["acceptance_length"] = sum(s.num_output_tokens for s in stats) / num_steps
    firsts = [s.first_token_s for s in stats if s.first_token_s is not None]
    if firsts:
        values["first_token_ms"] = 1000.0 * max(firsts)
    between = [seconds for prompt in prompts if (seconds := prompt.per_token_s) is not None]
    if between:
        values["latency_per_token_ms"] = 1000.0 * max(between)
    num_tokens, device_s = sum(s.num_output_tokens for s in stats), sum(s.device.total for s in stats)
    if num_tokens and device_s:
        values["device_ms_per_token"] = 1000.0 * device_s / num_tokens
    return values
