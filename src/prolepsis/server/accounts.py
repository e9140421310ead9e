"""Usage and metrics of one response, from the request's raw counts."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from prolepsis.control.flags.decision import FlagDecision
from prolepsis.core.stats import ProposerCounts, RequestStats
from prolepsis.server.formats import Json
from prolepsis.server.policies import Ruling


@dataclass(frozen=True, slots=True)
class Counting:
    """What of an answer is counted besides prompt and completion."""

    has_prediction: bool = False
    count_rejected: bool = True
    """Rejected tokens of the caller's prediction count as completion tokens, as OpenAI bills them."""
    reasoning_tokens: int | None = None
    """None: the answer has no reasoning."""


def usage(stats: RequestStats, counting: Counting) -> Json:
    """OpenAI's `usage`; the prediction's counts are there only where the request carried a prediction.

    Tokens drafted by the engine itself are never counted.
    """
    completion = stats.num_output_tokens
    if counting.has_prediction and counting.count_rejected:
        completion += stats.prediction_rejected
    details: Json = {}
    if counting.has_prediction:
        details["accepted_prediction_tokens"] = stats.prediction_accepted
        details["rejected_prediction_tokens"] = stats.prediction_rejected
    if counting.reasoning_tokens is not None:
        details["reasoning_tokens"] = counting.reasoning_tokens
    shown: Json = {
        "prompt_tokens": stats.num_prompt_tokens,
        "completion_tokens": completion,
        "total_tokens": stats.num_prompt_tokens + completion,
        "prompt_tokens_details": {"cached_tokens": stats.num_cached_tokens},
    }
    return {**shown, "completion_tokens_details": details} if details else shown


def summed(parts: Sequence[RequestStats]) -> RequestStats:
    """Return the counts of several prompts' answers as one; times are those of the longest, the mode is the last's."""
    if len(parts) == 1:
        return parts[0]
    total = RequestStats(mode=parts[-1].mode, total_s=max(stats.total_s for stats in parts))
    for stats in parts:
        total.num_prompt_tokens += stats.num_prompt_tokens
        total.num_cached_tokens += stats.num_cached_tokens
        total.num_output_tokens += stats.num_output_tokens
        total.num_steps += stats.num_steps
        total.device.add(stats.device)
    return total


def metrics(stats: RequestStats, ruling: Ruling | None = None, flag: FlagDecision | None = None) -> Json:
    """Times (ms) and acceptance of one request with one sample, in vLLM's field names, and the mode in effect.

    `ruling`: the policy's, where there is a policy. `flag`: the flag's, where flags are asked.

    What drafts in shadow would have brought has figures of its own, where there were any.
    """
    first = stats.first_token_s
    generation_s = stats.total_s - stats.queue_s
    intervals = stats.num_output_tokens - 1
    decode_s = stats.total_s - first if first is not None else None
    ruled = {"policy_rule": ruling.rule, "policy_version": ruling.policy_version} if ruling else {}
    if ruling and ruling.pin:
        ruled |= {"rollout": ruling.pin.rollout_id, "arm": ruling.pin.place}
    asked = {"policy_flags": [asdict(one) for one in ruling.flags]} if ruling and ruling.flags else {}
    shadow = {"shadow_speculative_decoding": _speculative_decoding(stats.shadow)} if stats.shadow else {}
    return {
        "time_to_first_token_ms": _ms(first),
        "generation_time_ms": _ms(generation_s),
        "queue_time_ms": _ms(stats.queue_s),
        "mean_itl_ms": _ms(decode_s / intervals if decode_s is not None and intervals > 0 else None),
        "tokens_per_second": round(stats.num_output_tokens / generation_s, 3) if generation_s > 0 else None,
        "speculative_decoding": _speculative_decoding(stats.proposers),
        **shadow,
        "contract": _contract(stats),
        "effective": {
            "mode": stats.mode.mode,
            "reason": stats.mode.reason,
            "plan_version": stats.mode.plan_version,
            **ruled,
            **asked,
            **({"flag": asdict(flag)} if flag else {}),
        },
    }


def _contract(stats: RequestStats) -> Json:
    counts = stats.proposers.values()
    return {
        "num_verified_draft_tokens": sum(count.num_accepted + count.num_cut for count in counts),
        "num_delivered_draft_tokens": sum(count.num_delivered or 0 for count in counts),
        "lost": dict(stats.lost),
    }


def _speculative_decoding(proposers: Mapping[str, ProposerCounts]) -> Json:
    """A row that carried no draft counts as a step that accepted nothing in none of these figures."""
    drafts = sum(counts.num_drafts for counts in proposers.values())
    drafted = sum(counts.num_draft_tokens for counts in proposers.values())
    accepted = sum(counts.num_accepted for counts in proposers.values())
    histogram = acceptance_histogram(proposers)
    return {
        "mean_acceptance_length": round(1 + accepted / drafts, 4) if drafts else None,
        "draft_acceptance_rate": round(accepted / drafted, 4) if drafted else None,
        "acceptance_histogram": histogram,
        "num_spec_steps": drafts,
        "num_accepted_draft_tokens": accepted,
        "num_draft_tokens": drafted,
        "num_spec_tokens": len(histogram) - 1,
    }


def acceptance_histogram(proposers: Mapping[str, ProposerCounts]) -> list[int]:
    """How many drafts had 0, 1, 2, ... tokens accepted; its last entry stands for the deepest position drafted."""
    depth = max((len(counts.per_position) for counts in proposers.values()), default=0)
    at_least = [sum(counts.num_drafts for counts in proposers.values())] + [0] * depth
    for counts in proposers.values():
        for j, (_, accepted) in enumerate(counts.per_position):
            at_least[j + 1] += accepted
    return [here - beyond for here, beyond in zip(at_least, [*at_least[1:], 0], strict=True)]


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)
