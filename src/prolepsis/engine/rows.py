"""Rows: the work of one step for one sequence, and the tokens that it sampled."""

from dataclasses import dataclass, replace

from prolepsis.core.errors import GrammarFailed, NotFinite
from prolepsis.core.events import Difference, Proposed, TokenLogprobs
from prolepsis.core.reasons import PlainReason
from prolepsis.engine.drafting.choose import ShadowCost
from prolepsis.engine.drafting.draft import Draft
from prolepsis.engine.request import SequenceState


@dataclass(frozen=True, slots=True)
class Row:
    """Computes the tokens `start : start + num_tokens` of a sequence; samples the next if these are the last.

    Prefill chunk, plain decoding (1 token) and verification (1 token and a draft) differ in nothing else.
    """

    sequence: SequenceState
    start: int
    num_tokens: int
    draft: Draft | None = None
    plain: PlainReason | None = None  # reason why a row that might have a draft has none
    shadow: Draft | None = None  # a draft that is only compared with the emitted tokens; no part of the pass
    shadow_cost: ShadowCost = ()

    @property
    def samples_next(self) -> bool:
        """Whether the row computes all tokens there are and one may follow; true only before the step is committed."""
        sequence = self.sequence
        return self.start + self.num_tokens == len(sequence.tokens) and sequence.params.max_tokens > 0

    @property
    def scored(self) -> range:
        """Its tokens whose logits give the log-probability of the next one of the prompt, where that is asked for."""
        sequence = self.sequence
        if not sequence.is_scored:
            return range(0)
        return range(sequence.num_scored, min(self.start + self.num_tokens, sequence.num_prompt_tokens - 1))

    @property
    def num_kept(self) -> int:
        """Of its tokens, the last ones whose logits are kept; before the step is committed."""
        scored = self.scored
        return self.start + self.num_tokens - scored.start if scored else int(self.samples_next)

    @property
    def decodes(self) -> bool:
        """Whether it computes the last token of an answer alone, so that a draft may follow; as `samples_next`."""
        return self.num_tokens == 1 and self.samples_next and self.sequence.num_output_tokens > 0

    @property
    def num_scheduled_tokens(self) -> int:
        return self.num_tokens + (len(self.draft.tokens) if self.draft else 0)

    @property
    def proposed(self) -> Proposed | None:
        draft = self.draft
        return None if draft is None else Proposed(draft.tokens, draft.parents, draft.proposer, draft.sources)


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """The target's sample for a row: the emitted tokens, and the accepted draft nodes (one fewer) in order."""

    tokens: tuple[int, ...]
    path: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] | None = None
    fault: GrammarFailed | NotFinite | None = None
    """The sequence's grammar gave up behind these tokens, or its logits are no numbers: its request fails."""
    difference: Difference | None = None
    """The difference, if this is a replay whose last token differs from the one emitted before."""
    scores: tuple[TokenLogprobs, ...] = ()
    """Log-probabilities of tokens of the prompt. There may be no emitted tokens with them."""

    def without_last(self) -> "SampledTokens":
        return replace(self, tokens=self.tokens[:-1], path=self.path[:-1])
