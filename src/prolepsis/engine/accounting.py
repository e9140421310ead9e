"""Charges the time of a step to its requests: all of it, by what each row used.

With S rows in the pass, N tokens, C cached tokens and the measured cost curve T(tokens, cached tokens), a row is worth

    T(S, 0) / S                                         weights are read once for all: an equal part of one token each
    + (T(S, C) - T(S, 0)) * its cached tokens / C       keys and values it reads
    + (T(N, C) - T(S, C)) * its further tokens / (N-S)  tokens of prompt or draft beyond its first

and pays that share of the pass as it was measured, so the curve decides how time is split and never how much there is.
Of a row that decodes the first two lines are `plain`, the third is `verify`; all of the others is `prefill`. Making
drafts is paid in equal parts by the rows that proposers were asked for, what proposers learn by the requests that may
speculate, the rest of the step by all rows.

`predicted_plain`: a row that emits k tokens would have taken k plain steps, each at the cost of its `plain`
and `host` in this one.
"""

from array import array
from collections.abc import Mapping, Sequence
from math import isfinite

from prolepsis.core.plan import SpecPlan
from prolepsis.core.reasons import EffectiveReason, PlainReason
from prolepsis.core.rounds import MAX_ROUNDS, Round
from prolepsis.core.stats import AcceptedRun, DeviceSeconds, EffectiveMode, Mode, ProposerCounts, count_draft
from prolepsis.engine.drafting.cost import CostCurve
from prolepsis.engine.drafting.draft import ROOT
from prolepsis.engine.drafting.shadow import ShadowDraft
from prolepsis.engine.request import Request, SequenceState
from prolepsis.engine.rows import Row, SampledTokens
from prolepsis.engine.timings import StepTiming

_SHORT = 4  # a prediction of so few tokens is looked for in the prompt as a whole
_NOT_ASKED: frozenset[PlainReason] = frozenset(
    {"too_costly", "memory_lent", "backoff", "breaker_open", "shadow_budget", "decision_failed", "no_capacity"}
)


def charge(rows: Sequence[Row], timing: StepTiming, cost: CostCurve) -> None:
    """Add each row's part of a step that was just committed to its request; the parts add up to `timing.total`.

    Less than 0.01 ms for one row, less than 0.04 for 32 (`benchmarks.charging_cost`).
    """
    _charge_drafting(rows, timing)
    num_sequences, num_context, num_tokens = len(rows), 0, 0
    for row in rows:
        num_context += row.start
        num_tokens += row.num_tokens
        if row.draft is not None:
            num_tokens += len(row.draft.tokens)
    seconds = timing.forward + timing.verify
    equal, by_context, by_token = _split(cost, num_sequences, num_tokens, num_context)
    scale = seconds / (equal + by_context + by_token) if seconds else 0.0
    equal *= scale / num_sequences
    by_context *= scale / (num_context or 1)
    by_token *= scale / ((num_tokens - num_sequences) or 1)
    host = (timing.schedule + timing.commit) / num_sequences
    for row in rows:
        sequence, start, num_new = row.sequence, row.start, row.num_tokens
        device = sequence.request.stats.device
        device.host += host
        first = equal + by_context * start
        if num_new > 1 or start < sequence.num_prompt_tokens:
            first += by_token * (row.num_scheduled_tokens - 1)
            device.prefill += first
            device.predicted_plain += first + host
            continue
        device.plain += first
        if row.draft is not None:
            device.verify += by_token * len(row.draft.tokens)
        device.predicted_plain += (len(sequence.tokens) - start - 1) * (first + host)


def _charge_drafting(rows: Sequence[Row], timing: StepTiming) -> None:
    """Share the time of drafting between the rows that proposers were asked for, and of learning between all."""
    drafting: list[DeviceSeconds] = []
    learning: list[DeviceSeconds] = []
    for row in rows:
        request, plain = row.sequence.request, row.plain
        if request.source.speculation.mode != "off":
            learning.append(request.stats.device)
        if row.draft is not None or row.shadow is not None or not (plain is None or plain in _NOT_ASKED):
            drafting.append(request.stats.device)
    everyone = learning or [row.sequence.request.stats.device for row in rows]
    for payers, seconds in ((drafting or everyone, timing.propose), (everyone, timing.learn)):
        for device in payers:
            device.propose += seconds / len(payers)


def _split(cost: CostCurve, num_sequences: int, num_tokens: int, num_context: int) -> tuple[float, float, float]:
    """Return the milliseconds of the three lines above: finite, none below 0, more than 0 together.

    A curve may fall or be no number; a part below 0 would be time that a request is given, which no counter takes.
    """
    alone = cost.ms(num_sequences, 0)
    plain = cost.ms(num_sequences, num_context) if num_context else alone
    whole = cost.ms(num_tokens, num_context) if num_tokens > num_sequences else plain
    parts = max(alone, 1e-9), max(0.0, plain - alone), max(0.0, whole - plain)
    return parts if isfinite(alone + plain + whole) and isfinite(sum(parts)) else (1.0, 0.0, 0.0)


def count_scheduled(request: Request, now: float) -> None:
    """Count a row of the request in a pass: until now it may have waited for rows of others, also while it ran."""
    request.begun = True
    if request.queued_since is not None:
        request.stats.queue_s += now - request.queued_since
        request.queued_since = None


def count_started(sequence: SequenceState) -> None:
    request = sequence.request
    if not request.started:
        request.started = True
        request.stats.num_cached_tokens = min(sequence.num_computed, sequence.num_prompt_tokens)
    request.num_running += 1


def count_cached(row: Row) -> None:
    """Count a row that began behind what was known to be computed: the runner's own prefix cache held the rest."""
    sequence, stats = row.sequence, row.sequence.request.stats
    if sequence is sequence.request.sequences[0] and not sequence.num_output_tokens:
        stats.num_cached_tokens = min(row.start, sequence.num_prompt_tokens)


def count_stopped(request: Request, now: float) -> None:
    request.num_running -= 1
    if request.num_running == 0 and request.queued_since is None:
        request.queued_since = now


def count_emitted(row: Row, accepted: Sequence[int], tokens: Sequence[int], now: float) -> tuple[str, ...]:
    """Count a pass that accepted the nodes `accepted` of the row's draft and emitted `tokens`, fewer at an end.

    Return the proposer that each drafted token among them counts for.
    """
    request, stats = row.sequence.request, row.sequence.request.stats
    stats.num_steps += 1
    stats.num_output_tokens += len(tokens)
    if stats.first_token_s is None:
        stats.first_token_s = now - request.arrival
        stats.prefill_s = max(0.0, stats.first_token_s - stats.queue_s)
    if row.plain is not None:
        stats.plain_steps[row.plain] = stats.plain_steps.get(row.plain, 0) + 1
    path = row.draft.follow(tokens) if row.draft is not None else ()
    credited = row.draft.credits(path) if row.draft is not None else ()
    if (part := row.sequence.part) is not None:
        stats.count_inside(part, {"emitted": len(tokens), "drafted": len(credited), "accepted": len(path)})
    _count_run(row, path, len(tokens))
    if row.draft is None:
        return ()
    count_draft(stats.proposers, credited, len(path))
    for node in accepted[len(path) :]:
        name = row.draft.sources[node] if row.draft.sources else row.draft.proposer
        stats.proposers.setdefault(name, ProposerCounts()).num_cut += 1
    return credited[: len(path)]


def _count_run(row: Row, path: Sequence[int], num_emitted: int) -> None:
    """Extend the sequence's run of accepted tokens by a draft's and, unless one of it was rejected, the bonus token."""
    sequence, stats = row.sequence, row.sequence.request.stats
    last = path[-1] if path else ROOT
    is_whole = row.draft is not None and (len(path) == num_emitted or last not in row.draft.parents)
    sequence.num_run += num_emitted if is_whole else len(path)
    if sequence.num_run > stats.longest_run.length:
        end = sequence.num_output_tokens - (0 if is_whole else num_emitted - len(path))
        stats.longest_run = AcceptedRun(sequence.index, end - sequence.num_run, sequence.num_run)
    if not is_whole:
        sequence.num_run = 0


def count_shadow(row: Row, tokens: Sequence[int], *, ended: bool) -> None:
    """Compare the sequence's shadow draft, or the row's new one, with the emitted tokens; count it once decided."""
    sequence = row.sequence
    if row.shadow is not None:
        sequence.shadow = ShadowDraft(row.shadow)
        for name, drafting, verifying in row.shadow_cost:
            counts = sequence.request.stats.shadow.setdefault(name, ProposerCounts())
            counts.drafting += drafting
            counts.verifying += verifying
    shadow = sequence.shadow
    if shadow is not None and (shadow.follow(tokens) or ended):
        count_draft(sequence.request.stats.shadow, shadow.draft.credits(shadow.path), len(shadow.path))
        sequence.shadow = None


def close_stats(request: Request, plan: SpecPlan, now: float) -> None:
    """Fill in the counts that are known only at the end."""
    stats = request.stats
    stats.arrival = request.arrival
    stats.total_s = now - request.arrival
    if request.queued_since is not None:
        stats.queue_s += now - request.queued_since
        request.queued_since = None
    stats.compute_s = max(0.0, stats.total_s - stats.queue_s)
    predicted = stats.proposers.get("prediction")
    if predicted is not None:
        stats.prediction_accepted = predicted.num_accepted
        stats.prediction_rejected = predicted.num_draft_tokens - predicted.num_accepted
        if not predicted.num_accepted and _is_in(request.source.prediction_token_ids, request.source.prompt_token_ids):
            stats.prediction_rejected = 0  # it said nothing that the prompt does not, which drafts by itself
    reason = "replay" if request.source.is_replay else _reason(request, plan)
    is_shadow = stats.shadow and request.source.speculation.mode == "shadow"
    mode: Mode = "on" if stats.num_drafts else "shadow" if is_shadow else "off"
    stats.mode = EffectiveMode(mode, reason, plan.version)


def _is_in(part: Sequence[int], tokens: Sequence[int]) -> bool:
    """Return whether `part` stands in `tokens`; at its ends one token each may be written in another way there."""
    inner = array("q", part[1:-1] if len(part) > _SHORT else part).tobytes()
    text, place = array("q", tokens).tobytes(), -1
    while inner and (place := text.find(inner, place + 1)) >= 0:
        if place % array("q").itemsize == 0:
            return True
    return False


def _reason(request: Request, plan: SpecPlan) -> EffectiveReason:
    choice, stats = request.source.speculation, request.stats
    if choice.enabled and plan.kills(request.source.kill_scopes):
        return "killed"
    if stats.num_drafts or (stats.shadow and choice.mode == "shadow"):
        is_cut = stats.num_drafts and plan.reason == "overload_shallow"
        return "overload_shallow" if is_cut else "speculating" if stats.num_drafts else "compared"
    if choice.rollout_run in plan.stopped:
        return "rolled_back"
    if not choice.enabled or choice.num_speculative_tokens == 0:
        return choice.off_reason if not choice.enabled else "requested_off"
    if plan.ceiling == 0:
        return plan.off_reason
    frequent: EffectiveReason = next((of.off_reason for of in choice.inside or () if not of.enabled), "no_decode")
    steps = 0
    for plain, count in request.stats.plain_steps.items():
        if plain != "no_capacity" and count > steps:
            frequent, steps = plain, count
    return frequent


def keep_rounds(
    rows: Sequence[Row],
    sampled: Sequence[SampledTokens | None],
    timing: StepTiming,
    span: tuple[float, float],
    versions: Mapping[str, str],
) -> None:
    """Keep a step that was just committed as one of the first rounds of the requests that verified a draft in it.

    `span`: beginning and commit of the step on the engine's clock. `versions`: of the draft heads, by proposer. The
    cost: `benchmarks.tracing_cost`.
    """
    for row, result in zip(rows, sampled, strict=True):
        draft = row.draft
        if draft is None or result is None:
            continue
        sequence = row.sequence
        request = sequence.request
        rounds = request.stats.rounds
        if not request.source.keeps_rounds or len(rounds) >= MAX_ROUNDS:
            continue
        position = row.start + row.num_tokens - sequence.num_prompt_tokens
        num_emitted = sequence.num_output_tokens - position
        names = sorted(set(draft.sources or (draft.proposer,)))
        version = next((versions[name] for name in names if name in versions), "")
        rounds.append(
            Round(
                span[0] - request.arrival,
                span[1] - request.arrival,
                timing.propose,
                timing.forward,
                timing.verify,
                sequence.index,
                position,
                "+".join(names),
                version,
                len(draft.tokens),
                draft.depth,
                min(len(result.path), num_emitted),
                num_emitted,
            )
        )
