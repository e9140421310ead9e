"""What one step does for one sequence, and what came of it."""

from dataclasses import dataclass

from prolepsis.core.errors import GrammarFailed
from prolepsis.core.events import Difference, Proposed, TokenLogprobs
from prolepsis.core.stats import PlainReason
from prolepsis.engine.request import SequenceState
from prolepsis.spec.draft import Draft
from prolepsis.spec.selection import ShadowSpent


@dataclass(frozen=True, slots=True)
class Row:
    """Computes the tokens `start : start + num_tokens` of a sequence; samples the next if these are the last.

    Prefill chunk, plain decoding (1 token) and verification (1 token and a draft) differ in nothing else.
    """

    sequence: SequenceState
    start: int
    num_tokens: int
    draft: Draft | None = None
    plain: PlainReason | None = None
    """Why it has no draft though it might have had one."""
    shadow: Draft | None = None
    """Compared with what is emitted, and no part of the pass."""
    shadow_spent: ShadowSpent = ()

    @property
    def samples_next(self) -> bool:
        """Whether the row computes all tokens there are; to be asked before the step is committed."""
        return self.start + self.num_tokens == len(self.sequence.tokens)

    @property
    def num_rows(self) -> int:
        """Tokens of the pass: committed ones and draft nodes."""
        return self.num_tokens + (len(self.draft.tokens) if self.draft else 0)

    @property
    def proposed(self) -> Proposed | None:
        """The draft as plain values."""
        draft = self.draft
        return None if draft is None else Proposed(draft.tokens, draft.parents, draft.proposer, draft.sources)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the target says: draft nodes accepted, in order, and the tokens emitted, one more than those."""

    tokens: tuple[int, ...]
    path: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] | None = None
    fault: GrammarFailed | None = None
    """The sequence's grammar gave up: its request fails."""
    difference: Difference | None = None
    """Of a replay whose last token here is not the one that was emitted before."""
