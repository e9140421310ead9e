"""The three verbs of every proposer, and what a proposer may see of a sample."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from prolepsis.core.sampling_params import SamplingParams
from prolepsis.grammar.matcher import Matcher
from prolepsis.spec.draft import Draft


class SampleView(Protocol):
    """One sample of a request as proposers see it; read only."""

    @property
    def key(self) -> str:
        """Unique among live samples: request id and sample index."""

    @property
    def tokens(self) -> Sequence[int]:
        """Prompt and committed output, oldest first. The list only grows while the sample lives."""

    @property
    def num_prompt_tokens(self) -> int: ...

    @property
    def pages(self) -> Sequence[int]:
        """Numbers of the pages that hold its K/V, for proposers whose own K/V follows them."""

    @property
    def scope(self) -> str:
        """Tenant scope; nothing learnt in one scope may be proposed in another."""

    @property
    def slice(self) -> str:
        """The requests it is counted with (`spec.ledger`)."""

    @property
    def prediction(self) -> Sequence[int]:
        """The caller's predicted output, or empty."""

    @property
    def params(self) -> SamplingParams: ...

    @property
    def matcher(self) -> Matcher | None:
        """Of the sample's grammar, where it has one, after `tokens`; proposers only ask it, never advance it."""

    @property
    def noise_key(self) -> int:
        """64-bit key of the sample's keyed noise (`sampling.noise`), for proposers that share it."""


class Proposer(Protocol):
    """A runtime object that guesses tokens. It owns its cache; it never changes a sample.

    A proposer may raise or return nonsense: the engine contains it, counts it and decodes that row plainly.
    """

    @property
    def name(self) -> str: ...

    def propose(self, samples: Sequence[SampleView], limits: Sequence[int]) -> Sequence[Draft | None]:
        """Return one draft of at most `limits[i]` nodes for each sample, or None where there is nothing to say."""

    def commit(self, sample: SampleView, num_new: int) -> None:
        """Learn that the last `num_new` tokens of `sample.tokens` are committed.

        Called once with the whole prompt when the sample starts to decode, then after each step that emitted tokens.
        """

    def forget(self, sample: SampleView) -> None:
        """The sample ended (its tokens may be kept for others of its scope); free what only it needed."""


@runtime_checkable
class TreeProposer(Proposer, Protocol):
    """A proposer whose drafts cost time by the level, or once where it says `one_pass`, and may be trees."""

    def propose_trees(
        self, samples: Sequence[SampleView], depths: Sequence[int], limits: Sequence[int], threshold: float
    ) -> Sequence[Draft | None]:
        """Return drafts of at most `depths[i]` levels and `limits[i]` nodes.

        A level is worth drafting only below a node that survives with more than `threshold`.
        """
