"""A proposer that plays a script, for tests and benchmarks."""

from collections.abc import Callable, Sequence

from prolepsis.spec.draft import Draft
from prolepsis.spec.proposer import SampleView

Script = Callable[[SampleView, int], Draft | None]
"""(sample, limit) -> draft; may raise or return nonsense, which is the point of a drill."""


class Scripted:
    """Asks `script` for each sample and keeps what it was told, in order."""

    def __init__(self, script: Script, name: str = "scripted", *, free: bool = True) -> None:
        self.name = name
        self.free = free
        self.committed: list[tuple[str, int]] = []
        """(sample key, tokens) of each commit."""
        self.forgotten: list[str] = []
        self._script = script

    def propose(self, samples: Sequence[SampleView], limits: Sequence[int]) -> list[Draft | None]:
        return [self._script(sample, limit) for sample, limit in zip(samples, limits, strict=True)]

    def commit(self, sample: SampleView, num_new: int) -> None:
        self.committed.append((sample.key, num_new))

    def forget(self, sample: SampleView) -> None:
        self.forgotten.append(sample.key)
