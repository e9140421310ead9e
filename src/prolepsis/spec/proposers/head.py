"""A draft head as proposer: its K/V follows the target's pages, its drafts are small trees, all sequences at once.

It sees the target's hidden states of prompts, and of what is committed while it may draft (`take`; it is told what it
missed). Slots are written when a draft is asked for, or when a page becomes full and may be shared. Drafted tokens go
to pages of the head's own behind those of the pool, with a copy of the sequence's last page in front.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from prolepsis.core.config import DRAFT_HEAD
from prolepsis.core.stats import ProposerMemory
from prolepsis.models.heads.base import DraftHead, LookingAhead, TreeGrowing
from prolepsis.models.protocol import PAGE_SIZE, Batch, KVCache, SequenceInput, pack
from prolepsis.spec.draft import Draft
from prolepsis.spec.proposer import SequenceView, Shown
from prolepsis.spec.proposers.candidates import CANDIDATES
from prolepsis.spec.proposers.head_slots import HeadSlots, HeadState
from prolepsis.spec.proposers.head_tree import GROWTH, HeadTree, as_draft, grow, stack
from prolepsis.spec.proposers.scratch import Scratch, scratch_pages

MAX_NODES = 24
"""Nodes of a draft at most."""


@dataclass(slots=True)
class _Turn:
    """One sequence in a call of `propose`."""

    index: int
    sequence: SequenceView
    state: HeadState
    tree: HeadTree
    pages: list[int] = field(default_factory=list)
    """Its full pages, then scratch; once it is known that it drafts a second level."""

    @property
    def length(self) -> int:
        """Slots it has with its last token written."""
        return len(self.sequence.tokens) - self.state.base


class Head:
    """Proposes trees of a draft head; `num_pages` are those of the target's pool, whose numbers it shares."""

    name = DRAFT_HEAD
    free = False

    def __init__(self, head: DraftHead, *, num_pages: int, max_sequences: int) -> None:
        self._head = head
        self._ahead = head if isinstance(head, LookingAhead) and head.info.levels else None
        self._grower = head if isinstance(head, TreeGrowing) and head.info.levels else None
        self._cache = head.make_cache(num_pages + scratch_pages(MAX_NODES) * max_sequences)
        self._slots = HeadSlots(num_pages, head.info.feature_size)
        self._scratch = Scratch(self._cache, first_page=num_pages, max_sequences=max_sequences, max_nodes=MAX_NODES)

    @property
    def one_pass(self) -> bool:
        """Whether all levels of a draft come from one pass."""
        return self._ahead is not None

    @property
    def label(self) -> str:
        """NAME@VERSION of the head."""
        return self._head.info.name

    @property
    def taps(self) -> tuple[int, ...]:
        """Layers of the target whose input it sees (`spec.features.FeatureConsumer`)."""
        return self._head.info.taps

    def memory(self) -> ProposerMemory:
        """Return weights, and the K/V of all pages with the hidden states kept beside them."""
        info = self._head.info
        kv = info.page_bytes * self._cache.num_pages + self._slots.num_bytes
        return ProposerMemory(self.name, weights=info.weight_bytes, kv=kv)

    def copy_page(self, source: int, target: int) -> None:
        """Follow the target's cache: one page was copied to another."""
        self._cache.copy_page(source, target)
        self._slots.copy_page(source, target)

    def take(self, shown: Sequence[Shown]) -> None:
        """Keep the hidden states; write the slots of sequences that may draft and whose last page became full."""
        with self._forgetting([part.sequence for part in shown]):
            inputs: list[SequenceInput] = []
            features: list[torch.Tensor] = []
            for part in shown:
                state = self._slots.add(part)
                end = part.start + len(part.tokens)
                if state is None or end // PAGE_SIZE <= state.written // PAGE_SIZE:
                    continue
                if not part.drafts and state.written % PAGE_SIZE == 0:
                    self._slots.park(state, part.sequence)
                    continue
                first, unwritten = self._slots.take(state, part.sequence, end)
                tokens = [*part.sequence.tokens[first : part.start], *part.tokens[max(0, first - part.start) :]]
                inputs.append(SequenceInput(tokens, first - state.base, state.pages(part.sequence), keep_last=0))
                features.append(unwritten)
            if inputs:
                self._head.committed(pack(inputs), self._cache, _joined(features), 1)

    def miss(self, sequence: SequenceView, start: int, end: int) -> None:
        """Let go of a sequence that may not draft: it is not shown the tokens `start : end`."""
        self._slots.miss(sequence, start, end)

    def propose(self, sequences: Sequence[SequenceView], limits: Sequence[int]) -> list[Draft | None]:
        """Return a chain or tree of at most `limits[i]` nodes for each sequence whose hidden states are known."""
        return self.propose_trees(sequences, limits, limits, 0.0)

    def propose_trees(
        self, sequences: Sequence[SequenceView], depths: Sequence[int], limits: Sequence[int], threshold: float
    ) -> list[Draft | None]:
        """Return trees of at most `depths[i]` levels and `limits[i]` nodes (`spec.proposer.TreeProposer`)."""
        drafts: list[Draft | None] = [None] * len(sequences)
        turns = self._start(sequences, depths, limits, threshold)
        if turns:
            with self._forgetting([turn.sequence for turn in turns]):
                for turn, draft in zip(turns, self._drafts(turns), strict=True):
                    drafts[turn.index] = draft
        return drafts

    def commit(self, sequence: SequenceView, num_new: int) -> None:
        """Nothing to do: what it learns of committed tokens are their hidden states."""

    def forget(self, sequence: SequenceView) -> None:
        self._slots.drop(sequence.key)

    @contextmanager
    def _forgetting(self, sequences: Sequence[SequenceView]) -> Iterator[None]:
        """Forget what is known of `sequences` where a pass over them fails, for others too: it may be half written."""
        try:
            yield
        except Exception:
            for sequence in sequences:
                self._slots.fail(sequence)
            raise

    def _start(
        self, sequences: Sequence[SequenceView], depths: Sequence[int], limits: Sequence[int], threshold: float
    ) -> list[_Turn]:
        turns: list[_Turn] = []
        for i, sequence in enumerate(sequences):
            state = self._slots.get(sequence)
            limit = min(limits[i], MAX_NODES)
            if state is not None and min(depths[i], limit) > 0 and len(turns) < self._scratch.max_sequences:
                depth = depths[i] if self._ahead is None else min(depths[i], 1 + self._ahead.info.levels)
                tree = HeadTree(sequence, depth, limit, threshold)
                turns.append(_Turn(i, sequence, state, tree))
        return turns

    def _drafts(self, turns: Sequence[_Turn]) -> list[Draft | None]:
        if self._grower is not None:
            wishes = [turn.tree.wish for turn in turns]
            trees = self._grower.trees(*self._unwritten(turns), GROWTH, wishes)
            return [as_draft(turn.sequence, tree, self.name) for turn, tree in zip(turns, trees, strict=True)]
        if self._ahead is not None:
            self._look_ahead(self._ahead, turns)
        else:
            self._level_by_level(turns)
        return [turn.tree.draft(self.name) for turn in turns]

    def _look_ahead(self, head: LookingAhead, turns: Sequence[_Turn]) -> None:
        """Draft all levels from one pass."""
        found = head.outlook(*self._unwritten(turns), CANDIDATES)
        grow([turn.tree for turn in turns], found.first.tokens, found.first.logprobs)
        while growing := [(row, turn.tree) for row, turn in enumerate(turns) if turn.tree.ask()]:
            places = [(tree.level - 1) * len(turns) + row for row, tree in growing for _ in range(tree.num_new)]
            drafted = [token for _, tree in growing for token in tree.new_tokens]
            tokens, logprobs = head.follow(found, places, drafted, CANDIDATES)
            grow([tree for _, tree in growing], tokens, logprobs)

    def _level_by_level(self, turns: Sequence[_Turn]) -> None:
        self._first_level(turns)
        while growing := [turn for turn in turns if turn.tree.ask()]:
            self._next_level(growing)

    def _unwritten(self, turns: Sequence[_Turn]) -> tuple[Batch, KVCache, torch.Tensor]:
        """Return a pass over the slots up to each sequence's last token, with their true features."""
        inputs: list[SequenceInput] = []
        features: list[torch.Tensor] = []
        for turn in turns:
            state, sequence = turn.state, turn.sequence
            first, unwritten = self._slots.take(state, sequence, len(sequence.tokens))
            inputs.append(SequenceInput(list(sequence.tokens[first:]), first - state.base, state.pages(sequence)))
            features.append(unwritten)
        return pack(inputs), self._cache, _joined(features)

    def _first_level(self, turns: Sequence[_Turn]) -> None:
        """Write the slots up to each sequence's last token, and take the candidates after it."""
        found = self._head.committed(*self._unwritten(turns), CANDIDATES)
        grow([turn.tree for turn in turns], found.tokens, found.logprobs, found.states)
        for row, turn in enumerate(turns):
            if turn.tree.depth > 1:
                turn.pages = self._scratch.begin(row, turn.state.pages(turn.sequence), turn.length)

    def _next_level(self, turns: Sequence[_Turn]) -> None:
        """Take the candidates after the nodes just asked; the K/V of those before are written again beside them."""
        batch = pack([turn.tree.input(turn.length, turn.pages) for turn in turns])
        found = self._head.drafted(batch, self._cache, stack([turn.tree for turn in turns]), CANDIDATES)
        grow([turn.tree for turn in turns], found.tokens, found.logprobs, found.states)


def _joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return parts[0].contiguous() if len(parts) == 1 else torch.cat(list(parts))
