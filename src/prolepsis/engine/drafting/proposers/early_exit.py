"""The target's own first layers as proposer (LayerSkip, arXiv 2404.16710): drafts chains, all sequences at once.

The target's cache holds the K/V of every token but the last committed one, of the first layers to the bit, so there is
nothing to catch up on, nothing to keep, and preempted, forked and prefix-cached sequences are like any other. What
drafting writes goes to pages behind those of the pool, with a copy of the sequence's last page in front: no slot that
the target reads is ever written.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from prolepsis.core.stats import ProposerMemory
from prolepsis.engine.drafting.draft import ROOT, Draft, best_first
from prolepsis.engine.drafting.proposer import Proposer, SequenceView
from prolepsis.engine.drafting.proposers.candidates import CANDIDATES, confidence_bucket, rank
from prolepsis.engine.drafting.proposers.scratch import Scratch, scratch_pages
from prolepsis.engine.models.protocol import KVCache, SequenceInput, pack
from prolepsis.engine.models.targets.early_exit import EarlyExit

MAX_DEPTH = 16
SCRATCH_PAGES = scratch_pages(MAX_DEPTH)


@dataclass(slots=True)
class _ExitChain:
    index: int
    sequence: SequenceView
    limit: int
    pages: list[int]  # its full pages, then scratch
    nodes: list[tuple[int, int, float, int]] = field(default_factory=list)
    """Token, parent, survival and bucket, as `engine.drafting.draft.best_first` takes them."""

    @property
    def survival(self) -> float:
        return self.nodes[-1][2] if self.nodes else 1.0

    @property
    def input(self) -> SequenceInput:
        """The last token, whose K/V the next level writes."""
        token = self.nodes[-1][0] if self.nodes else self.sequence.tokens[-1]
        return SequenceInput([token], len(self.sequence.tokens) - 1 + len(self.nodes), self.pages)

    def grow(self, token: int, chance: float) -> None:
        parent = len(self.nodes) - 1 if self.nodes else ROOT
        bucket = confidence_bucket(self.sequence, chance)
        self.nodes.append((token, parent, self.survival * chance, bucket))


class EarlyExitProposer(Proposer):
    """Proposes chains of an early exit over the target's `cache`, whose pages from `first_page` on are its own.

    There it has `SCRATCH_PAGES` for each of `max_sequences`; of more sequences in a call the last get no draft.
    """

    name = "early_exit"
    shares_target = True

    def __init__(
        self, early: EarlyExit, cache: KVCache, *, first_page: int, max_sequences: int, page_bytes: int = 0
    ) -> None:
        """`page_bytes`: of the cache, for `memory`; 0 if that is not needed."""
        self._scratch_bytes = page_bytes * SCRATCH_PAGES * max_sequences
        self._exit = early
        self._cache = cache
        self._scratch = Scratch(cache, first_page=first_page, max_sequences=max_sequences, max_nodes=MAX_DEPTH)

    def memory(self) -> ProposerMemory:
        return ProposerMemory(self.name, kv=self._scratch_bytes)

    def propose(self, sequences: Sequence[SequenceView], limits: Sequence[int]) -> list[Draft | None]:
        """Return a chain of `limits[i]` nodes, `MAX_DEPTH` at most, for each sequence."""
        return self.propose_trees(sequences, limits, limits, 0.0)

    def propose_trees(
        self, sequences: Sequence[SequenceView], depths: Sequence[int], limits: Sequence[int], threshold: float
    ) -> list[Draft | None]:
        """Return chains that end where they survive with `threshold` or less."""
        chains: list[_ExitChain] = []
        for i, (sequence, depth, limit) in enumerate(zip(sequences, depths, limits, strict=True)):
            if min(depth, limit) > 0 and len(chains) < self._scratch.max_sequences:
                computed = len(sequence.tokens) - 1  # all but the last token
                pages = self._scratch.begin(len(chains), sequence.pages, computed)
                chains.append(_ExitChain(i, sequence, min(depth, limit, MAX_DEPTH), pages))
        growing: Sequence[_ExitChain] = chains
        while growing := [c for c in growing if len(c.nodes) < c.limit and c.survival > threshold]:
            tokens, logprobs = self._exit.likeliest(pack([c.input for c in growing]), self._cache, CANDIDATES)
            for row, c in enumerate(growing):
                c.grow(*rank(c.sequence, len(c.nodes), tokens[row], logprobs[row])[0])
        drafts: list[Draft | None] = [None] * len(sequences)
        for c in chains:
            drafts[c.index] = best_first(c.nodes, self.name) if c.nodes else None
        return drafts
