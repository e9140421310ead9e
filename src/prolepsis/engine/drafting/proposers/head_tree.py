"""Grows draft trees over a head: level by level, over levels of one pass, or in one call of the head itself.

Confidence-guided as in EAGLE-2 (arXiv 2406.16858): a node's survival is the product of the head's probabilities on its
path, and the likeliest nodes of a level get children. `tree_grower` selects the way for a head once, when it is loaded;
`grow_over_levels` is the reference of `grow_in_one_call`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from prolepsis.engine.drafting.draft import ROOT, Draft, best_first
from prolepsis.engine.drafting.proposer import SequenceView
from prolepsis.engine.drafting.proposers.candidates import CANDIDATES, confidence_bucket, rank_rows
from prolepsis.engine.drafting.proposers.scratch import Scratch
from prolepsis.engine.models.heads.base import DraftHead, LookaheadHead, TreeHead, TreeParams, TreeSpec
from prolepsis.engine.models.protocol import Batch, KVCache, SequenceInput, pack

TREE_PARAMS = TreeParams(num_candidates=CANDIDATES, max_children=4, max_expanded=3, min_survival=0.02)
"""How far trees branch, also those that a head grows itself."""


@dataclass(slots=True)
class Node:
    """A drafted token; `parent` is an index into the tree's nodes."""

    token: int
    parent: int
    depth: int
    survival: float
    bucket: int
    given: Tensor | None  # [hidden] float32: the head's state at its parent, to draft from


@dataclass(slots=True)
class HeadTree:
    """One sequence's draft while it grows. `expanded` are the nodes whose children are known or wanted, in order."""

    sequence: SequenceView
    proposer: str
    max_depth: int
    node_budget: int
    expansion_threshold: float
    """A level is drafted only below nodes that survive more often: the cost of a level, in tokens."""
    tree_params: TreeParams = TREE_PARAMS
    nodes: list[Node] = field(default_factory=list)
    expanded: list[int] = field(default_factory=list)
    num_expanding: int = 0  # how many of `expanded`, at the end, wait for their children
    level: int = 0

    def select(self) -> bool:
        """Select the nodes to expand next; False if the tree is done."""
        self.level += 1
        if self.level >= self.max_depth:
            return False
        last = [
            i
            for i, node in enumerate(self.nodes)
            if node.depth == self.level and node.survival > self.expansion_threshold
        ]
        new = sorted(sorted(last, key=lambda i: -self.nodes[i].survival)[: self.tree_params.max_expanded])
        self.expanded += new
        self.num_expanding = len(new)
        return bool(new)

    def input(self, cached: int, pages: list[int]) -> SequenceInput:
        """Return all expanded nodes as a pass over them behind `cached` slots, keeping the new ones."""
        place = {node: i for i, node in enumerate(self.expanded)} | {ROOT: ROOT}
        tokens = [self.nodes[i].token for i in self.expanded]
        parents = [place[self.nodes[i].parent] for i in self.expanded]
        return SequenceInput(tokens, cached, pages, parents, keep_last=self.num_expanding)

    @property
    def expanding_tokens(self) -> list[int]:
        return [self.nodes[i].token for i in self.expanded[-self.num_expanding :]]

    def grow(self, tokens: Tensor, logprobs: Tensor, states: Tensor | None = None) -> None:
        """Add what the head expects after the new nodes, or at first after the committed tokens (`Candidates`)."""
        parents = self.expanded[-self.num_expanding :] if self.expanded else [ROOT]
        for row, ranked in enumerate(rank_rows(self.sequence, self.level, tokens, logprobs)):
            parent = parents[row]
            survival = 1.0 if parent == ROOT else self.nodes[parent].survival
            given = None if states is None else states[row]
            for token, chance in ranked[: self.tree_params.max_children]:
                if survival * chance >= self.tree_params.min_survival:
                    bucket = confidence_bucket(self.sequence, chance)
                    self.nodes.append(Node(token, parent, self.level + 1, survival * chance, bucket, given))

    @property
    def spec(self) -> TreeSpec:
        """The tree to grow, for a head that does so itself."""
        sequence = self.sequence
        position = len(sequence.tokens) - sequence.num_prompt_tokens
        return TreeSpec(
            self.max_depth, self.node_budget, self.expansion_threshold, sequence.params, sequence.noise_key, position
        )

    def draft(self) -> Draft | None:
        """Return the likeliest nodes within the node budget as a draft."""
        order = sorted(range(len(self.nodes)), key=lambda i: -self.nodes[i].survival)[: self.node_budget]
        if not order:
            return None
        place = {node: i for i, node in enumerate(order)} | {ROOT: ROOT}
        kept = [self.nodes[i] for i in order]
        return best_first([(n.token, place[n.parent], n.survival, n.bucket) for n in kept], self.proposer)


@dataclass(frozen=True, slots=True)
class HeadPass:
    """A pass of a head over the slots up to the last token of each sequence that drafts."""

    inputs: Sequence[SequenceInput]
    batch: Batch
    cache: KVCache
    features: Tensor  # [tokens of the batch, feature_size] bfloat16: the target's


GrowTrees = Callable[[Sequence[HeadTree], HeadPass], list[Draft | None]]
"""Writes the slots of a pass and returns the draft of each tree, in their order."""


def tree_grower(head: DraftHead, scratch: Scratch) -> GrowTrees:
    """Return the fastest way to grow trees over `head`; with levels, all of a tree comes from one pass."""
    if not head.info.levels:
        return partial(grow_by_passes, head, scratch)
    if isinstance(head, TreeHead):
        return partial(grow_in_one_call, head)
    assert isinstance(head, LookaheadHead), "a head with levels looks ahead"
    return partial(grow_over_levels, head)


def grow_in_one_call(head: TreeHead, trees: Sequence[HeadTree], first: HeadPass) -> list[Draft | None]:
    specs, tree_params = [tree.spec for tree in trees], trees[0].tree_params
    drafts: list[Draft | None] = []
    grown = head.trees(first.batch, first.cache, first.features, tree_params, specs)
    for tree, result in zip(trees, grown, strict=True):
        buckets = tuple([confidence_bucket(tree.sequence, chance) for chance in result.chances])
        draft = Draft(result.tokens, result.parents, tree.proposer, result.survival, buckets=buckets)
        drafts.append(draft if result.tokens else None)
    return drafts


def grow_over_levels(head: LookaheadHead, trees: Sequence[HeadTree], first: HeadPass) -> list[Draft | None]:
    candidates = head.look_ahead(first.batch, first.cache, first.features, CANDIDATES)
    _grow(trees, candidates.first.tokens, candidates.first.logprobs)
    while growing := [(row, tree) for row, tree in enumerate(trees) if tree.select()]:
        places = [(tree.level - 1) * len(trees) + row for row, tree in growing for _ in range(tree.num_expanding)]
        drafted = [token for _, tree in growing for token in tree.expanding_tokens]
        tokens, logprobs = head.follow(candidates, places, drafted, CANDIDATES)
        _grow([tree for _, tree in growing], tokens, logprobs)
    return [tree.draft() for tree in trees]


def grow_by_passes(head: DraftHead, scratch: Scratch, trees: Sequence[HeadTree], first: HeadPass) -> list[Draft | None]:
    """Grow trees with a pass for each level; drafted tokens are written to scratch pages."""
    candidates = head.committed(first.batch, first.cache, first.features, CANDIDATES)
    _grow(trees, candidates.tokens, candidates.logprobs, candidates.states)
    slots: list[tuple[int, list[int]]] = []  # written, and the pages to draft in
    for place, (tree, written) in enumerate(zip(trees, first.inputs, strict=True)):
        cached = written.cached + len(written.token_ids)
        slots.append((cached, scratch.begin(place, written.pages, cached) if tree.max_depth > 1 else []))
    while growing := [(tree, *at) for tree, at in zip(trees, slots, strict=True) if tree.select()]:
        expanding = [tree for tree, _, _ in growing]
        batch = pack([tree.input(cached, pages) for tree, cached, pages in growing])  # K/V of earlier nodes again
        given = [tree.nodes[i].given for tree in expanding for i in tree.expanded]
        states = torch.stack([state for state in given if state is not None])
        candidates = head.drafted(batch, first.cache, states, CANDIDATES)
        _grow(expanding, candidates.tokens, candidates.logprobs, candidates.states)
    return [tree.draft() for tree in trees]


def _grow(trees: Sequence[HeadTree], tokens: Tensor, logprobs: Tensor, states: Tensor | None = None) -> None:
    """Grow `trees` by consecutive rows: one for every node that waits, or a tree's first row."""
    first = 0
    for tree in trees:
        rows = slice(first, first + (tree.num_expanding or 1))
        tree.grow(tokens[rows], logprobs[rows], None if states is None else states[rows])
        first = rows.stop
