"""A proposer that plays a script, for tests and benchmarks."""

from collections.abc import Callable, Sequence

from prolepsis.engine.drafting.draft import Draft
from prolepsis.engine.drafting.proposer import Proposer, SequenceView

Script = Callable[[SequenceView, int], Draft | None]
"""(sequence, limit) -> draft; may raise or return nonsense, which is the point of a drill."""


class Scripted(Proposer):
    """Asks `script` for each sequence and keeps the calls of `commit` and `forget`, in order."""

    def __init__(self, script: Script, name: str = "scripted", *, free: bool = True) -> None:
        self.name = name
        self.free = free
        self.committed: list[tuple[str, int]] = []
        """(sequence key, tokens) of each commit."""
        self.forgotten: list[str] = []
        self._script = script

    def propose(self, sequences: Sequence[SequenceView], limits: Sequence[int]) -> list[Draft | None]:
        return [self._script(sequence, limit) for sequence, limit in zip(sequences, limits, strict=True)]

    def commit(self, sequence: SequenceView, num_new: int) -> None:
        self.committed.append((sequence.key, num_new))

    def forget(self, sequence: SequenceView) -> None:
        self.forgotten.append(sequence.key)
