"""The acceptance figures of a request, derived from its raw counts."""

from prolepsis.cli.output import print_facts, stderr, stderr_table
from prolepsis.core.stats import ProposerCounts, RequestStats


def figures(stats: RequestStats) -> dict[str, object]:
    """Return counts, times in milliseconds and ratios of one request, as JSON shows them."""
    return {
        "num_prompt_tokens": stats.num_prompt_tokens,
        "num_cached_tokens": stats.num_cached_tokens,
        "num_output_tokens": stats.num_output_tokens,
        "num_steps": stats.num_steps,
        "acceptance_length": round(stats.acceptance_length, 3),
        "tokens_per_s": _rounded(tokens_per_s(stats)),
        "first_token_ms": _rounded(None if stats.first_token_s is None else 1e3 * stats.first_token_s),
        "queue_ms": round(1e3 * stats.queue_s, 1),
        "compute_ms": round(1e3 * stats.compute_s, 1),
        "total_ms": round(1e3 * stats.total_s, 1),
        "device_ms": {kind: round(1e3 * seconds, 1) for kind, seconds in stats.device.by_kind().items()},
        "mode": stats.mode.mode,
        "reason": stats.mode.reason,
        "plain_steps": dict(stats.plain_steps),
        "proposers": {name: _proposer(counts) for name, counts in sorted(stats.proposers.items())},
    }


def tokens_per_s(stats: RequestStats) -> float | None:
    """Return output tokens per second from arrival to the end, None where no time passed."""
    return stats.num_output_tokens / stats.total_s if stats.total_s > 0 else None


def print_stats(stats: RequestStats) -> None:
    """Print the figures on standard error: the request's line by line, a table of its proposers where any drafted."""
    values = figures(stats)
    values.pop("proposers")
    values["device_ms"] = ", ".join(f"{1e3 * spent:.1f} {kind}" for kind, spent in stats.device.by_kind().items())
    values["plain_steps"] = ", ".join(f"{count} {reason}" for reason, count in stats.plain_steps.items()) or None
    print_facts(list(values.items()), stderr())
    if stats.proposers:
        columns = ["proposer", "drafts", "drafted", "accepted", "rate", "length", "by position"]
        rows = [[name, *_proposer_row(counts)] for name, counts in sorted(stats.proposers.items())]
        stderr_table("proposers", columns, rows)


def _proposer(counts: ProposerCounts) -> dict[str, object]:
    return {
        "num_drafts": counts.num_drafts,
        "num_draft_tokens": counts.num_draft_tokens,
        "num_accepted": counts.num_accepted,
        "acceptance_rate": _rounded(_ratio(counts.num_accepted, counts.num_draft_tokens), 4),
        "acceptance_length": _rounded(_acceptance_length(counts), 3),
        "per_position": [{"drafted": drafted, "accepted": accepted} for drafted, accepted in counts.per_position],
    }


def _proposer_row(counts: ProposerCounts) -> list[str]:
    rates = " ".join(f"{accepted / drafted:.2f}" for drafted, accepted in counts.per_position[:8] if drafted)
    rate, length = _ratio(counts.num_accepted, counts.num_draft_tokens), _acceptance_length(counts)
    numbers = [str(n) for n in (counts.num_drafts, counts.num_draft_tokens, counts.num_accepted)]
    return [*numbers, "-" if rate is None else f"{rate:.3f}", "-" if length is None else f"{length:.2f}", rates]


def _acceptance_length(counts: ProposerCounts) -> float | None:
    extra = _ratio(counts.num_accepted, counts.num_drafts)
    return None if extra is None else 1 + extra


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _rounded(value: float | None, digits: int = 1) -> float | None:
    return None if value is None else round(value, digits)
