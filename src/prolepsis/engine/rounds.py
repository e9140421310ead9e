"""Keeps the first rounds of the requests that want them, for traces and for people who ask why one was slow."""

from collections.abc import Mapping, Sequence

from prolepsis.core.rounds import MAX_ROUNDS, Round
from prolepsis.engine.drafting.draft import Draft
from prolepsis.engine.rows import Row, SampledTokens
from prolepsis.engine.timings import StepTiming


def keep_rounds(
    rows: Sequence[Row],
    sampled: Sequence[SampledTokens | None],
    timing: StepTiming,
    span: tuple[float, float],
    versions: Mapping[str, str],
) -> None:
    """Add a step that was just committed to the stats of the requests that verified a draft in it.

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
        proposer, version = _origin(draft, versions)
        rounds.append(
            Round(
                span[0] - request.arrival,
                span[1] - request.arrival,
                timing.propose,
                timing.forward,
                timing.verify,
                sequence.index,
                position,
                proposer,
                version,
                len(draft.tokens),
                draft.depth,
                min(len(result.path), num_emitted),
                num_emitted,
            )
        )


def _origin(draft: Draft, versions: Mapping[str, str]) -> tuple[str, str]:
    """Return who made a draft, and the version of the head among them."""
    if not draft.sources:
        return draft.proposer, versions.get(draft.proposer, "")
    names = sorted(set(draft.sources))
    return "+".join(names), next((versions[name] for name in names if name in versions), "")
