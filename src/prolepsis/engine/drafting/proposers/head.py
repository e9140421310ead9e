"""A draft head as proposer: its K/V follows the target's pages, its drafts are small trees, all sequences at once.

It takes the target's hidden states of prompts, and of committed tokens while it may draft; the engine names those that
it misses. Slots are written when a draft is asked for, or when a page becomes full and may be shared; while none is
asked for, full pages wait with their states. Drafted tokens go to pages of the head's own behind those of the pool,
with a copy of the sequence's last page in front.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from prolepsis.core.config import DRAFT_HEAD, HeadProposerName
from prolepsis.core.learning import tenant_digest
from prolepsis.core.page_size import PAGE_SIZE
from prolepsis.core.requests import UNCOUNTED_CLASS
from prolepsis.core.stats import ProposerMemory
from prolepsis.engine.drafting.draft import Draft
from prolepsis.engine.drafting.proposer import HiddenStates, Proposer, SequenceView
from prolepsis.engine.drafting.proposers.head_slots import HeadSlots, HeadState
from prolepsis.engine.drafting.proposers.head_tree import HeadPass, HeadTree, tree_grower
from prolepsis.engine.drafting.proposers.scratch import Scratch, scratch_pages
from prolepsis.engine.models.heads.base import DraftHead
from prolepsis.engine.models.protocol import KVCache, SequenceInput, pack

MAX_NODES = 24
PROMPT_TOKENS = 128
"""Last tokens of a prompt that the head reads, and up to a page more: what is before changes its drafts little."""


def head_pages(num_pages: int, max_sequences: int) -> int:
    """Return the pages of a head's cache: those of the target's pool, and those it drafts in."""
    return num_pages + scratch_pages(MAX_NODES) * max_sequences


class HeadProposer(Proposer):
    """Proposes trees of a draft head; `num_pages` are those of the target's pool, whose numbers it shares."""

    shares_target = True

    def __init__(
        self,
        head: DraftHead,
        *,
        num_pages: int,
        max_sequences: int,
        name: HeadProposerName = DRAFT_HEAD,
        cache: KVCache | None = None,
    ) -> None:
        """`cache`: of `head_pages(num_pages, max_sequences)`; None: it makes one."""
        self.name = name
        self._head = head
        self._cache = head.make_cache(head_pages(num_pages, max_sequences)) if cache is None else cache
        self._slots = HeadSlots(num_pages, head.info.feature_size)
        self._num_pages, self._is_lent = num_pages, False
        self._scratch = Scratch(self._cache, first_page=num_pages, max_sequences=max_sequences, max_nodes=MAX_NODES)
        self._grow = tree_grower(head, self._scratch)
        self.one_pass = head.info.levels > 0
        self._max_depth = 1 + head.info.levels if self.one_pass else MAX_NODES
        self.aux_layers = head.info.aux_layers

    @property
    def label(self) -> str:
        return self._head.info.name

    def serves(self, sequence: SequenceView) -> bool:
        """Return whether the head may draft for the sequence: others could time what its tenants wrote.

        The server's own requests, on which heads are tried, have a traffic class that no client can choose.
        """
        serves = self._head.info.serves
        return not serves or tenant_digest(sequence.tenant) in serves or sequence.traffic_class == UNCOUNTED_CLASS

    def memory(self) -> ProposerMemory:
        info = self._head.info
        kv = info.page_bytes * self._cache.num_pages + self._slots.num_bytes
        return ProposerMemory(self.name, weights=info.weight_bytes, kv=kv)

    def lend(self) -> None:
        self._slots, self._is_lent = HeadSlots(self._num_pages, self._head.info.feature_size), True

    def take_back(self) -> None:
        """Use the cache again; all pages are stale, as they are to a head that is loaded while serving."""
        self._is_lent = False

    def copy_page(self, source: int, target: int) -> None:
        if not self._is_lent:
            self._cache.copy_page(source, target)
            self._slots.copy_page(source, target)

    def clear_page(self, page: int) -> None:
        if not self._is_lent:
            self._cache.clear_page(page)

    def take(self, states: Sequence[HiddenStates]) -> None:
        """Keep the hidden states; write the slots of sequences asked for drafts whose last page became full."""
        if self._is_lent:
            return
        with self._forgetting([part.sequence for part in states]):
            inputs: list[SequenceInput] = []
            features: list[torch.Tensor] = []
            for part in filter(None, map(self._recent, states)):
                state = self._slots.add(part)
                end = part.start + len(part.tokens)
                if state is None or end // PAGE_SIZE <= state.written // PAGE_SIZE:
                    continue
                is_asked, state.is_asked = state.is_asked, False
                if (state.has_deferred or not is_asked) and state.written % PAGE_SIZE == 0:
                    self._slots.defer(state, part.sequence)
                    continue
                first, unwritten = self._slots.take(state, part.sequence, end)
                tokens = [*part.sequence.tokens[first : part.start], *part.tokens[max(0, first - part.start) :]]
                inputs.append(SequenceInput(tokens, first - state.valid_from, state.pages(part.sequence), keep_last=0))
                features.append(unwritten)
            if inputs:
                self._head.committed(pack(inputs), self._cache, _joined(features), 1)

    def _recent(self, part: HiddenStates) -> HiddenStates | None:
        """Return the part without a prompt's tokens before the last `PROMPT_TOKENS`; None if nothing is left."""
        first = (part.sequence.num_prompt_tokens - PROMPT_TOKENS) // PAGE_SIZE * PAGE_SIZE
        num_early = min(first - part.start, len(part.tokens))
        if num_early <= 0:
            return part
        self._slots.miss(part.sequence, part.start, part.start + num_early)
        if num_early == len(part.tokens):
            return None
        rest, features = part.tokens[num_early:], part.features[num_early:]
        return HiddenStates(part.sequence, part.start + num_early, rest, features)

    def miss(self, sequence: SequenceView, start: int, end: int) -> None:
        """Skip a sequence that may not draft: the states of its tokens `start : end` are not passed on."""
        if self._is_lent:
            return
        self._slots.miss(sequence, start, end)

    def propose(self, sequences: Sequence[SequenceView], limits: Sequence[int]) -> list[Draft | None]:
        """Return a chain or tree of at most `limits[i]` nodes for each sequence whose hidden states are known."""
        return self.propose_trees(sequences, limits, limits, 0.0)

    def propose_trees(
        self, sequences: Sequence[SequenceView], depths: Sequence[int], limits: Sequence[int], threshold: float
    ) -> list[Draft | None]:
        drafts: list[Draft | None] = [None] * len(sequences)
        known: list[tuple[int, HeadState]] = []
        trees: list[HeadTree] = []
        for i, (sequence, depth, limit) in enumerate(zip(sequences, depths, limits, strict=True)):
            state = self._slots.get(sequence)
            if state is not None and min(depth, limit) > 0 and len(trees) < self._scratch.max_sequences:
                state.is_asked = True
                known.append((i, state))
                shape = (min(depth, self._max_depth), min(limit, MAX_NODES))
                trees.append(HeadTree(sequence, self.name, *shape, threshold))
        if trees:
            with self._forgetting([tree.sequence for tree in trees]):
                grown = self._grow(trees, self._unwritten(trees, [state for _, state in known]))
            for (i, _), tree in zip(known, grown, strict=True):
                drafts[i] = tree
        return drafts

    def forget(self, sequence: SequenceView) -> None:
        self._slots.drop(sequence.key)

    @contextmanager
    def _forgetting(self, sequences: Sequence[SequenceView]) -> Iterator[None]:
        """Forget the slots of `sequences` if a pass over them fails: any of them may be half written."""
        try:
            yield
        except Exception:
            for sequence in sequences:
                self._slots.fail(sequence)
            raise

    def _unwritten(self, trees: Sequence[HeadTree], states: Sequence[HeadState]) -> HeadPass:
        inputs: list[SequenceInput] = []
        features: list[torch.Tensor] = []
        for tree, state in zip(trees, states, strict=True):
            sequence = tree.sequence
            first, unwritten = self._slots.take(state, sequence, len(sequence.tokens))
            pages = state.pages(sequence)
            inputs.append(SequenceInput(list(sequence.tokens[first:]), first - state.valid_from, pages))
            features.append(unwritten)
        return HeadPass(inputs, pack(inputs), self._cache, _joined(features))


def _joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return parts[0].contiguous() if len(parts) == 1 else torch.cat(list(parts))
