"""Proposes trees of what followed the last tokens of a sequence earlier: in itself, or in outputs under its cache salt.

One native call serves all sequences of a step (`sources/suffix.h`); where nothing can be compiled the same
drafts come from `suffix_index`, which says how places are found and weighed. With a tokenizer, text that an answer
copies in another form is found too (`copies`).
"""

from collections.abc import Sequence
from typing import Any

from prolepsis.core.stats import ProposerMemory
from prolepsis.engine.drafting.draft import Draft
from prolepsis.engine.drafting.proposer import Proposer, SequenceView
from prolepsis.engine.drafting.proposers.copies import Copies, TextCodec
from prolepsis.engine.drafting.proposers.expected_text import kernel_for
from prolepsis.engine.drafting.proposers.suffix_index import LEFT_CONTEXT, SEPARATOR, salt_tag


class SuffixProposer(Proposer):
    """Proposes trees from a per-sequence index and one shared per cache salt; `max_bytes` bounds the shared one."""

    name = "suffix"
    free = True

    def __init__(self, max_bytes: int = 64 << 20, tokenizer: TextCodec | None = None, *, native: bool = True) -> None:
        self._kernel = kernel_for(native=native)
        self.shared = self._kernel.SharedIndex(max_bytes)
        self._tokenizer = tokenizer
        self._local: dict[str, _Local] = {}

    def propose(self, sequences: Sequence[SequenceView], limits: Sequence[int]) -> list[Draft | None]:
        requests: list[tuple[Any, Sequence[int], int, int]] = []
        for sequence, limit in zip(sequences, limits, strict=True):
            local = self._local.get(sequence.key)
            if local is None:
                local = self._local[sequence.key] = _Local(self._kernel.SequenceIndex(), sequence, self._tokenizer)
            local.add_copies(sequence)
            requests.append((local.index, sequence.tokens[len(local.index) :], local.tag, limit))
        return [
            None if nodes is None else Draft(nodes[0], nodes[1], self.name, nodes[2], buckets=nodes[3])
            for nodes in self._kernel.propose(self.shared, requests)
        ]

    def memory(self) -> ProposerMemory:
        """Return the shared index as large as it may get; indexes of live sequences are small and end with them."""
        return ProposerMemory(self.name, index=self.shared.num_bytes)

    def forget(self, sequence: SequenceView) -> None:
        """Move the sequence's output into the shared index."""
        self._local.pop(sequence.key, None)
        prompt, output = sequence.tokens[: sequence.num_prompt_tokens], sequence.tokens[sequence.num_prompt_tokens :]
        if output:
            self.shared.add(salt_tag(sequence.cache_salt), [*prompt[-LEFT_CONTEXT:], *output])


class _Local:
    def __init__(self, index: Any, sequence: SequenceView, tokenizer: TextCodec | None) -> None:
        self.index = index
        self.tag = salt_tag(sequence.cache_salt)
        prompt = sequence.tokens[: sequence.num_prompt_tokens]
        self._copies = None if tokenizer is None else Copies(tokenizer, prompt)

    def add_copies(self, sequence: SequenceView) -> None:
        """Give the index the next piece of the prompt in a form that the answer has; none is looked for in a copy."""
        if self._copies is None:
            return
        if not self.index.goes_on:
            self._copies.follow(sequence.tokens, sequence.num_prompt_tokens)
        piece = self._copies.due()
        if piece:
            self.index.give([SEPARATOR, *piece])
