"""The interface of the engine that computes: `v0_32.VllmDataPlane` is vLLM's, tests have one over a table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True, slots=True)
class ComputedRow:
    """What a pass computed for one sequence."""

    key: str
    start: int
    """Tokens of the sequence that were computed before: in earlier passes, or found in the prefix cache."""
    num_tokens: int  # its tokens in the pass, without its draft
    num_draft_tokens: int = 0  # draft tokens that had room in the pass
    samples_next: bool = True  # the pass reached its last token, so its logits are there


@dataclass(frozen=True, slots=True)
class ComputedPass:
    """A pass that waits for the tokens which its rows emit."""

    rows: Sequence[ComputedRow]
    logits: Tensor  # [sum of 1 + num_draft_tokens over rows that sample, vocab] float32, in the order of the rows


class DataPlane(Protocol):
    """Schedules sequences, computes them and stores their K/V. Sequences are known by their key."""

    @property
    def num_blocks(self) -> int:
        """Blocks of K/V, `block_size` tokens each."""

    @property
    def block_size(self) -> int: ...

    def add(self, key: str, tokens: Sequence[int], cache_salt: str) -> None:
        """Take in a sequence with all its tokens."""

    def remove(self, keys: Sequence[str]) -> None:
        """Drop sequences and their K/V; unknown ones are ignored."""

    def compute(self, drafts: Mapping[str, Sequence[int]]) -> ComputedPass:
        """Run one pass over the sequences that it chooses, with the chains drafted for them."""

    def finish(self, emitted: Mapping[str, Sequence[int]]) -> None:
        """End the pass: each sequence that sampled goes on with its tokens given here, all computed but the last."""

    def reset(self) -> None:
        """Drop all sequences, and a pass that was not finished."""

    def close(self) -> None:
        """Give back threads and memory."""
