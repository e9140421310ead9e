"""Finds where a sequence ends inside the tokens of a step."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from prolepsis.core.events import FinishReason
from prolepsis.core.requests import SamplingParams
from prolepsis.engine.drafting.draft import ROOT, Draft
from prolepsis.engine.text.stream import TextStream

if TYPE_CHECKING:
    from prolepsis.engine.text.grammar.matcher import Matcher


class GrowingSequence(Protocol):
    """The state that the end of a sequence depends on; `engine.request.SequenceState` has it."""

    @property
    def params(self) -> SamplingParams: ...

    @property
    def tokens(self) -> Sequence[int]:
        """Prompt and output."""

    @property
    def num_output_tokens(self) -> int: ...

    @property
    def end_ids(self) -> frozenset[int]: ...

    @property
    def text(self) -> TextStream | None: ...

    @property
    def matcher(self) -> "Matcher | None": ...


@dataclass(frozen=True, slots=True)
class Ending:
    """The sequence ends with the `num_tokens`-th token of the step, inclusive."""

    num_tokens: int
    reason: FinishReason
    stop_reason: str | int | None = None


def find_ending(sequence: GrowingSequence, tokens: Sequence[int], max_model_len: int) -> Ending | None:
    """Return where `tokens`, emitted after those the sequence has, end it. Its stop-string search takes them in.

    End of sequence and stops count from the `min_tokens`-th output token on; the first that holds wins, token by token.
    A grammar that is complete and cannot continue ends the sequence however short it is. What ends it where its form is
    not whole cuts it: the reason is `length`, and the stop reason says what it was.
    """
    num_output = sequence.num_output_tokens
    room = min(sequence.params.max_tokens - num_output, max_model_len - len(sequence.tokens))
    over = sequence.matcher is not None and sequence.matcher.is_over(tokens)  # stays so once it is
    for count, token in enumerate(tokens, 1):
        if token in sequence.end_ids and num_output + count >= sequence.params.min_tokens:
            return _stopped(sequence, tokens[:count], token if token in sequence.params.stop_token_ids else None)
        if sequence.text is not None:
            sequence.text.push((token,))
            if sequence.text.matched is not None:
                return _stopped(sequence, tokens[:count], sequence.text.matched)
        if over and sequence.matcher is not None and sequence.matcher.is_over(tokens[:count]):
            return _stopped(sequence, tokens[:count], None)
        if count >= room:
            return Ending(count, "length")
    return None


def _stopped(sequence: GrowingSequence, tokens: Sequence[int], by: str | int | None) -> Ending:
    if sequence.matcher is None or sequence.matcher.is_whole(tokens):
        return Ending(len(tokens), "stop", by)
    return Ending(len(tokens), "length", tokens[-1] if by is None else by)


def cut_after_end(draft: Draft, end_ids: frozenset[int]) -> Draft:
    """Return the draft without the nodes below a token that ends the sequence: they could never be emitted."""
    if end_ids.isdisjoint(draft.tokens):
        return draft
    dead: set[int] = set()
    for node, parent in enumerate(draft.parents):
        if parent != ROOT and (parent in dead or draft.tokens[parent] in end_ids):
            dead.add(node)
    return draft.select([node for node in range(len(draft.tokens)) if node not in dead])
