"""Times and counts of a request: what `RequestStats` holds when its terminal event goes out.

A request is queued while it lives and none of its samples runs: before the first is scheduled, and after a preemption.
Queue time and compute time add up to the whole.
"""

from collections.abc import Sequence

from prolepsis.core.plan import SpecPlan
from prolepsis.core.stats import EffectiveMode, EffectiveReason, Mode, ProposerCounts, count_draft
from prolepsis.engine.request import Request, Sample
from prolepsis.engine.rows import Row
from prolepsis.spec.shadow import ShadowDraft

_OFF_BY_PLAN: dict[str, EffectiveReason] = {
    "killed": "killed",
    "overload_plain": "overload_plain",
    "overload_batch_waits": "overload_batch_waits",
    "overload_low_refused": "overload_low_refused",
}
"""Reasons of plans that turn speculation off, as requests report them."""
_STOPPED_OR_CUT: dict[str, EffectiveReason] = {"killed": "killed", "overload_shallow": "overload_shallow"}
"""So do requests whose drafts were verified before, or in part."""


def count_started(sample: Sample, now: float) -> None:
    """A sample of the request starts to run."""
    request = sample.request
    if request.queued_since is not None:
        request.stats.queue_s += now - request.queued_since
        request.queued_since = None
    if not request.started:
        request.started = True
        request.stats.num_cached_tokens = sample.num_computed
    request.num_running += 1


def count_stopped(request: Request, now: float) -> None:
    """A sample of the request stops running: preempted, or ended."""
    request.num_running -= 1
    if request.num_running == 0:
        request.queued_since = now


def count_emitted(row: Row, accepted: Sequence[int], tokens: Sequence[int], now: float) -> tuple[str, ...]:
    """A pass accepted the nodes `accepted` of the row's draft and emitted `tokens`, fewer where the sample ended.

    Return whom each of the drafted ones among them counts for.
    """
    request, stats = row.sample.request, row.sample.request.stats
    stats.num_steps += 1
    stats.num_output_tokens += len(tokens)
    if stats.first_token_s is None:
        stats.first_token_s = now - request.arrival
    if row.plain is not None:
        stats.plain_steps[row.plain] = stats.plain_steps.get(row.plain, 0) + 1
    if row.draft is None:
        return ()
    path = row.draft.follow(tokens)
    credited = row.draft.credits(path)
    count_draft(stats.proposers, credited, len(path))
    for node in accepted[len(path) :]:
        name = row.draft.sources[node] if row.draft.sources else row.draft.proposer
        stats.proposers.setdefault(name, ProposerCounts()).num_cut += 1
    return credited[: len(path)]


def count_shadow(row: Row, tokens: Sequence[int], *, ended: bool) -> None:
    """Compare the sample's shadow draft, or the row's new one, with the tokens just emitted; count it once decided."""
    sample = row.sample
    if row.shadow is not None:
        sample.shadow = ShadowDraft(row.shadow)
        for name, drafting, verifying in row.shadow_spent:
            counts = sample.request.stats.shadow.setdefault(name, ProposerCounts())
            counts.drafting += drafting
            counts.verifying += verifying
    shadow = sample.shadow
    if shadow is not None and (shadow.follow(tokens) or ended):
        count_draft(sample.request.stats.shadow, shadow.draft.credits(shadow.path), len(shadow.path))
        sample.shadow = None


def close_stats(request: Request, plan: SpecPlan, now: float) -> None:
    """Fill in what is known only at the end."""
    stats = request.stats
    stats.total_s = now - request.arrival
    if request.queued_since is not None:
        stats.queue_s += now - request.queued_since
        request.queued_since = None
    stats.compute_s = max(0.0, stats.total_s - stats.queue_s)
    predicted = stats.proposers.get("prediction")
    if predicted is not None:
        stats.prediction_accepted = predicted.num_accepted
        stats.prediction_rejected = predicted.num_draft_tokens - predicted.num_accepted
    reason = "replay" if request.source.is_replay else _reason(request, plan)
    mode: Mode = "on" if stats.num_drafts else "shadow" if stats.shadow else "off"
    stats.mode = EffectiveMode(mode, reason, plan.version)


def _reason(request: Request, plan: SpecPlan) -> EffectiveReason:
    choice = request.source.speculation
    if request.stats.num_drafts:
        return _STOPPED_OR_CUT.get(plan.reason, "speculating")
    if request.stats.shadow:
        return "killed" if plan.reason == "killed" else "compared"
    if choice.rollout_run in plan.stopped:
        return "rolled_back"
    if not choice.enabled or choice.num_speculative_tokens == 0:
        return "flag_off" if choice.off_by_flag else "policy_off" if choice.off_by_policy else "requested_off"
    if plan.num_speculative_tokens == 0 or plan.fixed_depth == 0:
        return _OFF_BY_PLAN.get(plan.reason, "plan_off")
    frequent: EffectiveReason = "no_decode"
    steps = 0
    for plain, count in request.stats.plain_steps.items():
        if plain != "no_room" and count > steps:
            frequent, steps = plain, count
    return frequent
