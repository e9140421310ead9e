"""The figures of an answer: OpenAI's `usage`, and our `metrics` with acceptance, times and the mode in effect."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from prolepsis.control.policy.decision import Decision
from prolepsis.core.stages import engine_stages
from prolepsis.core.stats import QUALITIES, ProposerCounts, RequestStats

Json = dict[str, object]


def usage(
    stats: RequestStats,
    *,
    has_prediction: bool = False,
    count_rejected: bool = True,
    reasoning_tokens: int | None = None,
) -> Json:
    """OpenAI's `usage`; the prediction's counts are there only where the request carried a prediction.

    `count_rejected`: rejected tokens of the prediction count as completion tokens, as OpenAI bills them.
    `reasoning_tokens`: None where the answer has no reasoning. Tokens drafted by the engine itself are never counted.
    """
    completion = stats.num_output_tokens
    if has_prediction and count_rejected:
        completion += stats.prediction_rejected
    details: Json = {}
    if has_prediction:
        details["accepted_prediction_tokens"] = stats.prediction_accepted
        details["rejected_prediction_tokens"] = stats.prediction_rejected
    if reasoning_tokens is not None:
        details["reasoning_tokens"] = reasoning_tokens
    shown: Json = {
        "prompt_tokens": stats.num_prompt_tokens,
        "completion_tokens": completion,
        "total_tokens": stats.num_prompt_tokens + completion,
        "prompt_tokens_details": {"cached_tokens": stats.num_cached_tokens},
    }
    return {**shown, "completion_tokens_details": details} if details else shown


def summed(parts: Sequence[RequestStats]) -> RequestStats:
    """Return the counts of several prompts' answers as one; the mode is the last's.

    Times are from the first start to the first token of all, and to the last end; stages are not known of several.
    """
    if len(parts) == 1:
        return parts[0]
    total = RequestStats(
        mode=parts[-1].mode,
        waited_s=min(stats.waited_s for stats in parts),
        queue_s=min(stats.queue_s for stats in parts),
        first_token_s=min((s.first_token_s for s in parts if s.first_token_s is not None), default=None),
        total_s=max(stats.total_s for stats in parts),
        quality=max((stats.quality for stats in parts), key=QUALITIES.index),
    )
    for stats in parts:
        total.num_prompt_tokens += stats.num_prompt_tokens
        total.num_cached_tokens += stats.num_cached_tokens
        total.num_output_tokens += stats.num_output_tokens
        total.add(stats)
        total.continued += stats.continued
        total.not_exact += tuple(reason for reason in stats.not_exact if reason not in total.not_exact)
    return total


def metrics(stats: RequestStats, decision: Decision | None = None, *, num_samples: int = 1) -> Json:
    """Times (ms) and acceptance of one request, in vLLM's field names, and the mode in effect.

    `decision` adds what decided the mode. Drafts in shadow have figures of their own, if there were any. Of several
    samples the figures are sums, and the mean between tokens is null: which sample waited is not known.
    """
    first = stats.first_token_s
    generation_s = stats.total_s - stats.queue_s
    intervals = stats.num_output_tokens - 1 if num_samples == 1 else 0
    decode_s = stats.total_s - first if first is not None else None
    losses = [{"loss": loss.loss, "pause_ms": _ms(loss.pause_s)} for loss in stats.continued]
    continued = {"continued": losses, "not_exact": list(stats.not_exact)}
    shadow = {"shadow_speculative_decoding": _speculative_decoding(stats.shadow)} if stats.shadow else {}
    return {
        "time_to_first_token_ms": _ms(None if first is None else stats.waited_s + first),
        "generation_time_ms": _ms(generation_s),
        "queue_time_ms": _ms(stats.waited_s + stats.queue_s),
        "stages_ms": _stages(stats),
        "mean_itl_ms": _ms(decode_s / intervals if decode_s is not None and intervals > 0 else None),
        "tokens_per_second": round(stats.num_output_tokens / generation_s, 3) if generation_s > 0 else None,
        "speculative_decoding": _speculative_decoding(stats.proposers),
        **shadow,
        **({"inside": stats.inside} if stats.inside else {}),
        "correction_ms": _ms(stats.correction_s),
        "delivery": _delivery(stats),
        "quality": stats.quality,
        **(continued if stats.continued else {}),
        "effective": {
            "mode": stats.mode.mode,
            "reason": stats.mode.reason,
            "plan_version": stats.mode.plan_version,
            **(_decided_by(decision) if decision else {}),
        },
    }


def _stages(stats: RequestStats) -> Json | None:
    """The wall time by stage until the engine had ended; the client's reading is not known yet."""
    if not stats.arrival:  # of several prompts
        return None
    engine = engine_stages(stats)
    return {
        "receive": _ms(stats.receive_s),
        "queue": _ms(stats.waited_s + engine.queue),
        "prefill": _ms(engine.prefill),
        "decode": _ms(engine.decode),
        "others": _ms(engine.others),
    }


def _decided_by(decision: Decision) -> Json:
    shown: Json = {}
    if decision.rule is not None:
        shown |= {"policy_rule": decision.rule, "policy_version": decision.policy_version}
    if decision.assignment is not None:
        shown |= {"rollout": decision.assignment.rollout_id, "arm": decision.assignment.arm}
    if decision.limited_by:
        shown["limits"] = list(decision.limited_by)
    if decision.rule_flags:
        shown["policy_flags"] = [asdict(flag) for flag in decision.rule_flags]
    return shown if decision.flag is None else {**shown, "flag": asdict(decision.flag)}


def _delivery(stats: RequestStats) -> Json | None:
    counts = stats.proposers.values()
    if any(count.num_delivered is None for count in counts):
        return None
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
        "num_spec_tokens": max(0, len(histogram) - 1),
        "proposers": {
            name: {"num_accepted_draft_tokens": counts.num_accepted, "num_draft_tokens": counts.num_draft_tokens}
            for name, counts in proposers.items()
        },
    }


def acceptance_histogram(proposers: Mapping[str, ProposerCounts]) -> list[int]:
    """How many drafts had 0, 1, 2, ... tokens accepted; its last entry stands for the deepest position drafted.

    Empty where drafts are not known by position, as those of some upstream engines.
    """
    depth = max((len(counts.per_position) for counts in proposers.values()), default=0)
    if depth == 0 and any(counts.num_draft_tokens for counts in proposers.values()):
        return []
    at_least = [sum(counts.num_drafts for counts in proposers.values())] + [0] * depth
    for counts in proposers.values():
        for j, (_, accepted) in enumerate(counts.per_position):
            at_least[j + 1] += accepted
    return [here - beyond for here, beyond in zip(at_least, [*at_least[1:], 0], strict=True)]


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)
