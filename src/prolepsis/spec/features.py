"""Hidden states of committed tokens, and who wants to see them: draft heads, and the recorder they are trained from."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from prolepsis.spec.proposer import SampleView


@dataclass(frozen=True, slots=True)
class Shown:
    """What a pass computed for one sample: tokens that stand, and the target's hidden states at them."""

    sample: SampleView
    start: int
    """Position of the first of `tokens` in the sample."""
    tokens: Sequence[int]
    """Prompt tokens, the last committed one, and accepted draft tokens; not yet in `sample.tokens` are the latter."""
    features: Tensor  # [len(tokens), taps * hidden] bfloat16
    drafts: bool = True
    """Whether it may be drafted for; others are shown too since their pages may be shared."""


class FeatureConsumer(Protocol):
    """Sees the hidden states that enter the layers `taps`, for every token once its K/V stands."""

    @property
    def taps(self) -> tuple[int, ...]: ...

    def take(self, shown: Sequence[Shown]) -> None:
        """Take in what a step computed. Called before the step is committed, while the samples still hold their pages.

        Tokens of a sample come in order. A preempted sample starts over; tokens found in the prefix index are left out.
        """


@runtime_checkable
class DraftingConsumer(FeatureConsumer, Protocol):
    """A proposer that drafts from what it sees, and has no use for tokens of samples that it may not draft for."""

    @property
    def name(self) -> str: ...

    def miss(self, sample: SampleView, start: int, end: int) -> None:
        """The tokens `start : end` of a sample stand and are not shown. Called where `take` would be."""

    def forget(self, sample: SampleView) -> None:
        """The sample ended, or never drafted at all; may be called again."""
