"""The figures of one request that several engines served, one after the other."""

from collections.abc import Sequence

from prolepsis.core.stats import ProposerCounts, RequestStats


def joined(parts: Sequence[RequestStats]) -> RequestStats:
    """Return the parts as one: counts and seconds add up, the mode is the last's that speculated, else the last's.

    An engine that was lost with its figures is missing from them.
    """
    total = RequestStats()
    for part in parts:
        _add(total, part)
    if parts:
        total.mode = next((part.mode for part in reversed(parts) if part.num_drafts), parts[-1].mode)
        total.num_cached_tokens = parts[0].num_cached_tokens
        total.heads = _heads(parts)
    return total


def _add(total: RequestStats, part: RequestStats) -> None:
    for name in ("num_steps", "num_preemptions", "prediction_accepted", "prediction_rejected", "queue_s", "compute_s"):
        setattr(total, name, getattr(total, name) + getattr(part, name))
    total.prefill_s = total.prefill_s or part.prefill_s
    total.device.add(part.device)
    total.rounds += part.rounds
    for mine, theirs in ((total.proposers, part.proposers), (total.shadow, part.shadow)):
        for name, counts in theirs.items():
            mine.setdefault(name, ProposerCounts()).add(counts)
    for name, judged in part.judged.items():
        total.judged.setdefault(name, []).extend(judged)
    for reason, steps in part.plain_steps.items():
        total.plain_steps[reason] = total.plain_steps.get(reason, 0) + steps


def _heads(parts: Sequence[RequestStats]) -> dict[str, str | None]:
    """Return the heads that all parts had; None: one had another, so its drafts are evidence of neither."""
    names = {name for part in parts for name in part.heads}
    found = {name: {part.heads.get(name) for part in parts} for name in names}
    return {name: heads.pop() if len(heads) == 1 else None for name, heads in found.items()}
