"""The base class of proposers, their view of a sequence, and the hidden states that they may take."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from prolepsis.core.client_draft import ClientDraft
from prolepsis.core.messages import SetCorpora
from prolepsis.core.requests import SamplingParams
from prolepsis.core.stats import ProposerMemory
from prolepsis.engine.drafting.draft import Draft

if TYPE_CHECKING:  # the package itself exports Proposer and imports no torch
    from torch import Tensor

    from prolepsis.engine.text.grammar.matcher import Matcher


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
    def cache_salt(self) -> str:
        """Nothing learned under one salt may be proposed under another."""

    @property
    def tenant(self) -> str:
        """Whose it is, as far as it is known; no client chooses it."""

    @property
    def traffic_class(self) -> str:
        """The class of requests it is counted with (`engine.drafting.ledger`)."""

    @property
    def prediction(self) -> Sequence[int]:
        """The caller's predicted output, or empty."""

    @property
    def client_draft(self) -> ClientDraft | None:
        """Tokens that its client expects next, if it sent a draft."""

    @property
    def params(self) -> SamplingParams: ...

    @property
    def matcher(self) -> "Matcher | None":
        """The matcher of the sequence's grammar, after `tokens`. Proposers query it and never advance it."""

    @property
    def noise_key(self) -> int:
        """64-bit key of the sequence's keyed noise (`engine.sampling.noise`), for proposers that share it."""


@dataclass(slots=True)
class SequenceFields:
    """A `SequenceView` of plain values, for sequences of engines elsewhere; what is not known of them is empty."""

    key: str
    tokens: list[int]
    num_prompt_tokens: int
    params: SamplingParams = field(default_factory=SamplingParams)
    noise_key: int = 0
    cache_salt: str = ""
    tenant: str = ""
    traffic_class: str = ""
    pages: Sequence[int] = ()
    prediction: Sequence[int] = ()
    client_draft: ClientDraft | None = None
    matcher: "Matcher | None" = None


@dataclass(frozen=True, slots=True)
class HiddenStates:
    """The target's hidden states of one sequence in one step, at tokens that stand."""

    sequence: SequenceView
    start: int  # position of the first of `tokens` in the sequence
    tokens: Sequence[int]
    """Prompt tokens, the last committed token and accepted draft tokens; `sequence.tokens` lacks the accepted ones."""
    features: "Tensor"  # [len(tokens), aux_layers * hidden] bfloat16


class HiddenStateConsumer(Protocol):
    """Takes the hidden states that enter the layers `aux_layers`, at every token once its K/V stands."""

    @property
    def aux_layers(self) -> Sequence[int]: ...

    def take(self, states: Sequence[HiddenStates]) -> None:
        """Take the hidden states of a step. Called before it is committed, while the sequences still hold their pages.

        Tokens of a sequence come in order. A preempted sequence starts over; tokens found in the prefix index are left
        out.
        """


class Proposer(ABC):
    """Guesses tokens. It owns its cache and never changes a sequence; a subclass overrides what it needs.

    A proposer may raise or return nonsense: the engine contains it, counts it and decodes that row plainly.
    """

    name: str
    free: bool = False
    """A draft costs next to nothing: the proposer drafts every step and is judged on every committed token."""
    one_pass: bool = False  # a draft costs the same however deep it is
    by_tenant: bool = False  # its buckets are apart by tenant, so what is learned of its drafts is not kept
    shares_target: bool = False
    """It computes with the target's threads, cache or device, so no pass may run meanwhile: a call that is late is
    waited for. Calls of other proposers are left to themselves when they are late (`engine.drafting.call_watch`)."""
    aux_layers: Sequence[int] = ()  # layers of the target whose input the proposer takes (`HiddenStateConsumer`)

    @abstractmethod
    def propose(self, sequences: Sequence[SequenceView], limits: Sequence[int]) -> Sequence[Draft | None]:
        """Return one draft of at most `limits[i]` nodes for each sequence, or None."""

    def propose_trees(
        self, sequences: Sequence[SequenceView], depths: Sequence[int], limits: Sequence[int], threshold: float
    ) -> Sequence[Draft | None]:
        """Return drafts of at most `depths[i]` levels and `limits[i]` nodes.

        A level is worth drafting only below a node that survives with more than `threshold`. By default a chain.
        """
        return self.propose(sequences, depths)

    def serves(self, sequence: SequenceView) -> bool:
        """Return whether it can ever draft for the sequence; it is not called for others."""
        return True

    def commit(self, sequence: SequenceView, num_new: int) -> None:  # noqa: B027  nothing to learn, by default
        """Learn that the last `num_new` tokens of `sequence.tokens` are committed.

        Called once with the whole prompt when the sequence starts to decode, then after each step that emitted tokens.
        """

    def forget(self, sequence: SequenceView) -> None:  # noqa: B027  nothing is kept, by default
        """The sequence ended: free what only it needed. A sequence that was never drafted for may be named too."""

    def take_corpora(self, message: SetCorpora) -> None:  # noqa: B027  few draft from corpora
        """Draft from these texts in place of those that their owner had. Called between two steps."""

    def close(self) -> None:  # noqa: B027  it ends with its engine, by default
        """Release what would outlive the engine, such as a connection."""

    def lend(self) -> None:  # noqa: B027  only what has a cache in the target's memory is called
        """Forget all that the cache holds: its memory has another use. No draft is asked for until `take_back`."""

    def take_back(self) -> None:  # noqa: B027  see `lend`
        """Use the cache again, which holds anything now, except for what is no number."""

    def memory(self) -> ProposerMemory:
        """Return the memory it takes besides the target's; called from any thread."""
        return ProposerMemory(self.name)

    def take(self, states: Sequence[HiddenStates]) -> None:  # noqa: B027  without aux_layers there is nothing to take
        """Take the hidden states of a step (`HiddenStateConsumer`)."""

    def miss(self, sequence: SequenceView, start: int, end: int) -> None:  # noqa: B027  see `take`
        """The tokens `start : end` of a sequence that may not be drafted for stand; their states are not given."""
