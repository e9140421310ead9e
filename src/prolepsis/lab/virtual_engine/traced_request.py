"""A request of a trace: when it came, how long prompt and answer were, and how far drafts would have followed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from prolepsis.core.page_size import PAGE_SIZE
from prolepsis.core.recorded_draft import RecordedDraft
from prolepsis.core.requests import GenerateRequest, SamplingParams, SpeculationChoice

VOCAB_SIZE = 1 << 32
"""Of the ids that stand for tokens: the prefix index stores 32 bits of each."""
_UNKNOWN = 1 << 31
_WRONG = VOCAB_SIZE - (1 << 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedRequest:
    """It has no text: ids that stand for its tokens are made of the blocks, so that equal prefixes are found again."""

    number: int
    """Its place in the trace, from 0."""
    num_prompt_tokens: int
    num_output_tokens: int
    blocks: tuple[int, ...] = ()
    """Of prompt and answer, as far as they are known: two blocks with equal numbers end equal texts."""
    block_size: int = PAGE_SIZE
    """Tokens."""
    scope: str = ""
    """Requests of different scopes share no prefix."""
    traffic_class: str = ""
    drafts: Mapping[str, Sequence[RecordedDraft]] = field(default_factory=dict)
    """By proposer, in order."""

    def tokens(self) -> list[int]:
        """Return ids that stand for prompt and answer."""
        length = self.num_prompt_tokens + self.num_output_tokens
        known = [block * self.block_size + i for block in self.blocks for i in range(self.block_size)][:length]
        return known + [_UNKNOWN + self.number] * (length - len(known))

    def request(self, choice: SpeculationChoice | None = None) -> GenerateRequest:
        """Return what is asked of the engine."""
        return GenerateRequest(
            request_id=str(self.number),
            prompt_token_ids=tuple(self.tokens()[: self.num_prompt_tokens]),
            params=SamplingParams(temperature=0.0, max_tokens=self.num_output_tokens, ignore_eos=True),
            cache_salt=self.scope,
            traffic_class=self.traffic_class,
            speculation=choice or SpeculationChoice(),
        )


def wrong_token(number: int) -> int:
    """Return an id that no text has, for drafted tokens that the answer does not follow."""
    return _WRONG + number
