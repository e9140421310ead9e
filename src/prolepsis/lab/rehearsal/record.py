"""Turns requests that have ended into lines of a trace: times, lengths, numbers of blocks and drafts; no text."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from prolepsis.core.page_size import PAGE_SIZE
from prolepsis.core.requests import GenerateRequest
from prolepsis.core.stats import RequestStats
from prolepsis.engine.kv.pages import extend_hashes
from prolepsis.lab.rehearsal.trace import MeasuredTimes, TraceLine


@dataclass(slots=True)
class BlockNumbers:
    """Numbers blocks in the order in which they come; equal numbers end equal texts of one scope."""

    _numbers: dict[bytes, int] = field(default_factory=dict)

    def of(self, tokens: Sequence[int], scope: str) -> tuple[int, ...]:
        """Return the number of each full block."""
        hashes: list[bytes] = []
        extend_hashes(hashes, tokens, PAGE_SIZE, scope, len(tokens) // PAGE_SIZE)
        return tuple(self._numbers.setdefault(digest, len(self._numbers)) for digest in hashes)

    def __len__(self) -> int:
        return len(self._numbers)


def trace_line(
    request: GenerateRequest, tokens: Sequence[int], stats: RequestStats, blocks: BlockNumbers, at: float
) -> TraceLine:
    """Return a request that ended with these tokens as its answer; `at` is its arrival in the trace."""
    whole, waited_s = [*request.prompt_token_ids, *tokens], stats.receive_s + stats.waited_s
    first_s = stats.first_token_s if stats.first_token_s is not None else stats.total_s
    return TraceLine(
        at=at,
        prompt=len(request.prompt_token_ids),
        output=len(tokens),
        blocks=blocks.of(whole, request.cache_salt),
        temperature=request.params.temperature,
        measured=MeasuredTimes(
            first_token_s=waited_s + first_s, total_s=waited_s + stats.total_s, num_steps=stats.num_steps
        ),
        drafts={name: tuple(drafts) for name, drafts in stats.drafts.items()},
    )
