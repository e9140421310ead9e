"""Proposes trees of what followed the last tokens of a sequence earlier: in itself, or in outputs under its cache salt.

One native call serves all sequences of a step (`engine/native/suffix.h`); where nothing can be compiled the same
drafts come from `suffix_index`, which says how places are found and weighed.
"""

from collections.abc import Sequence
from typing import Any

from prolepsis.core.stats import ProposerMemory
from prolepsis.engine.drafting.draft import Draft
from prolepsis.engine.drafting.kernel import draft_kernel
from prolepsis.engine.drafting.proposer import Proposer, SequenceView
from prolepsis.engine.drafting.proposers.suffix_index import LEFT_CONTEXT, LocalIndex, SharedIndex, salt_tag, tree


class SuffixProposer(Proposer):
    """Proposes trees from a per-sequence index and one shared per cache salt; `max_bytes` bounds the shared one."""

    name = "suffix"
    free = True

    def __init__(self, max_bytes: int = 64 << 20, *, native: bool = True) -> None:
        self._kernel = draft_kernel() if native else None
        self.shared: Any = SharedIndex(max_bytes) if self._kernel is None else self._kernel.SharedIndex(max_bytes)
        self._local: dict[str, Any] = {}
        self._tags: dict[str, int] = {}

    def propose(self, sequences: Sequence[SequenceView], limits: Sequence[int]) -> list[Draft | None]:
        if self._kernel is None:
            return [self._propose(sequence, limit) for sequence, limit in zip(sequences, limits, strict=True)]
        requests: list[tuple[Any, Sequence[int], int, int]] = []
        for sequence, limit in zip(sequences, limits, strict=True):
            local = self._local.get(sequence.key)
            if local is None:
                local = self._local[sequence.key] = self._kernel.LocalIndex()
                self._tags[sequence.key] = salt_tag(sequence.cache_salt)
            requests.append((local, sequence.tokens[len(local) :], self._tags[sequence.key], limit))
        return [
            None if found is None else Draft(found[0], found[1], self.name, found[2], buckets=found[3])
            for found in self._kernel.propose(self.shared, requests)
        ]

    def memory(self) -> ProposerMemory:
        """Return the shared index as large as it may get; indexes of live sequences are small and end with them."""
        return ProposerMemory(self.name, index=self.shared.num_bytes)

    def forget(self, sequence: SequenceView) -> None:
        """Move the sequence's output into the shared index."""
        self._local.pop(sequence.key, None)
        self._tags.pop(sequence.key, None)
        prompt, output = sequence.tokens[: sequence.num_prompt_tokens], sequence.tokens[sequence.num_prompt_tokens :]
        if output and self._kernel is None:
            self.shared.add(sequence.cache_salt, prompt, output)
        elif output:
            self.shared.add(salt_tag(sequence.cache_salt), [*prompt[-LEFT_CONTEXT:], *output])

    def _propose(self, sequence: SequenceView, limit: int) -> Draft | None:
        index = self._local.get(sequence.key)
        if index is None:
            index = self._local[sequence.key] = LocalIndex()
        index.extend(sequence.tokens)
        found = index.find(sequence.tokens, limit) + self.shared.find(sequence.cache_salt, sequence.tokens, limit)
        return tree(found, limit, self.name) if found else None
