"""What a proposer says of the memory it takes, where that is worth telling."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from prolepsis.core.requests import SamplingParams
from prolepsis.core.stats import ProposerMemory
from prolepsis.grammar.matcher import Matcher
from prolepsis.spec.draft import Draft


@runtime_checkable
class TakesMemory(Protocol):
    """A proposer that takes memory beside the target's; one that is not says that it takes none."""

    def memory(self) -> ProposerMemory:
        """Return it as it is now; called from any thread."""


class SequenceView(Protocol):
    """One sequence of a request as proposers see it; read only."""

    @property
    def key(self) -> str:
        """Unique among live sequences: request id and sequence index."""

    @property
    def tokens(self) -> Sequence[int]:
        """Prompt and committed output, oldest first. The list only grows while the sequence lives."""

    @property
    def num_prompt_tokens(self) -> int: ...

    @property
    def pages(self) -> Sequence[int]:
        """Numbers of the pages that hold its K/V, for proposers whose own K/V follows them."""

    @property
    def scope(self) -> str:
        """Tenant scope; nothing learnt in one scope may be proposed in another."""

    @property
    def traffic_class(self) -> str:
        """The requests it is counted with (`spec.ledger`)."""

    @property
    def prediction(self) -> Sequence[int]:
        """The caller's predicted output, or empty."""

    @property
    def params(self) -> SamplingParams: ...

    @property
    def matcher(self) -> Matcher | None:
        """Of the sequence's grammar, where it has one, after `tokens`; proposers only ask it, never advance it."""

    @property
    def noise_key(self) -> int:
        """64-bit key of the sequence's keyed noise (`sampling.noise`), for proposers that share it."""


class Proposer(Protocol):
    """A runtime object that guesses tokens. It owns its cache; it never changes a sequence.

    A proposer may raise or return nonsense: the engine contains it, counts it and decodes that row plainly.
    """

    @property
    def name(self) -> str: ...

    def propose(self, sequences: Sequence[SequenceView], limits: Sequence[int]) -> Sequence[Draft | None]:
        """Return one draft of at most `limits[i]` nodes for each sequence, or None where there is nothing to say."""

    def commit(self, sequence: SequenceView, num_new: int) -> None:
        """Learn that the last `num_new` tokens of `sequence.tokens` are committed.

        Called once with the whole prompt when the sequence starts to decode, then after each step that emitted tokens.
        """

    def forget(self, sequence: SequenceView) -> None:
        """The sequence ended (its tokens may be kept for others of its scope); free what only it needed."""


@runtime_checkable
class Selective(Proposer, Protocol):
    """A proposer with nothing to say on some sequences for as long as they live: it is not asked for those."""

    def serves(self, sequence: SequenceView) -> bool: ...


@runtime_checkable
class TreeProposer(Proposer, Protocol):
    """A proposer whose drafts cost time by the level, or once where it says `one_pass`, and may be trees."""

    def propose_trees(
        self, sequences: Sequence[SequenceView], depths: Sequence[int], limits: Sequence[int], threshold: float
    ) -> Sequence[Draft | None]:
        """Return drafts of at most `depths[i]` levels and `limits[i]` nodes.

        A level is worth drafting only below a node that survives with more than `threshold`.
        """


@dataclass(frozen=True, slots=True)
class Shown:
    """What a pass computed for one sequence: tokens that stand, and the target's hidden states at them."""

    sequence: SequenceView
    start: int
    """Position of the first of `tokens` in the sequence."""
    tokens: Sequence[int]
    """Prompt tokens, the last committed one, and accepted draft tokens; not yet in `sequence.tokens` are the latter."""
    features: Tensor  # [len(tokens), taps * hidden] bfloat16
    drafts: bool = True
    """Whether it may be drafted for; others are shown too since their pages may be shared."""


class FeatureConsumer(Protocol):
    """Sees the hidden states that enter the layers `taps`, for every token once its K/V stands."""

    @property
    def taps(self) -> tuple[int, ...]: ...

    def take(self, shown: Sequence[Shown]) -> None:
        """Take the hidden states of a step. Called before it is committed, while the sequences still hold their pages.

        Tokens of a sequence come in order. A preempted sequence starts over; tokens found in the prefix index are left
        out.
        """


@runtime_checkable
class DraftingConsumer(FeatureConsumer, Protocol):
    """A proposer that drafts from what it sees, and has no use for tokens of sequences that it may not draft for."""

    @property
    def name(self) -> str: ...

    def miss(self, sequence: SequenceView, start: int, end: int) -> None:
        """The tokens `start : end` of a sequence stand and are not shown. Called where `take` would be."""

    def forget(self, sequence: SequenceView) -> None:
        """The sequence ended, or never drafted at all; may be called again."""
