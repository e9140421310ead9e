"""A draft tree that a head grows level by level: the likeliest nodes of the last level are asked for their children.

Confidence-guided as in EAGLE-2 (arXiv 2406.16858): a node's survival is the product of the head's probabilities on its
path.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from prolepsis.models.heads.base import GrownTree, Growth, TreeWish
from prolepsis.models.protocol import SequenceInput
from prolepsis.spec.draft import ROOT, Draft, best_first
from prolepsis.spec.proposer import SequenceView
from prolepsis.spec.proposers.candidates import CANDIDATES, confidence_bucket, rank_rows

GROWTH = Growth(candidates=CANDIDATES, children=4, width=3, floor=0.02)
"""How far trees branch; a head that grows them itself is told so."""


@dataclass(slots=True)
class Node:
    """A drafted token; `parent` is an index into the tree's nodes."""

    token: int
    parent: int
    depth: int
    alive: float
    bucket: int
    given: Tensor | None  # [hidden] float32: the head's state at its parent, where it may be drafted from


@dataclass(slots=True)
class HeadTree:
    """One sequence's draft while it grows. `asked` are the nodes whose children are known or asked for, in order."""

    sequence: SequenceView
    depth: int
    limit: int
    threshold: float
    """A level is drafted only below nodes that survive more often: what one costs, in tokens."""
    growth: Growth = GROWTH
    nodes: list[Node] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)
    num_new: int = 0
    """How many of `asked`, at the end, wait for their children."""
    level: int = 0
    """Depth of the deepest nodes asked."""

    def ask(self) -> bool:
        """Choose the nodes to ask for children next; False where the tree is done."""
        self.level += 1
        if self.level >= self.depth:
            return False
        last = [i for i, node in enumerate(self.nodes) if node.depth == self.level and node.alive > self.threshold]
        new = sorted(sorted(last, key=lambda i: -self.nodes[i].alive)[: self.growth.width])
        self.asked += new
        self.num_new = len(new)
        return bool(new)

    def input(self, cached: int, pages: list[int]) -> SequenceInput:
        """Return all asked nodes as a pass over them behind `cached` slots, keeping the new ones."""
        place = {node: i for i, node in enumerate(self.asked)} | {ROOT: ROOT}
        tokens = [self.nodes[i].token for i in self.asked]
        parents = [place[self.nodes[i].parent] for i in self.asked]
        return SequenceInput(tokens, cached, pages, parents, keep_last=self.num_new)

    @property
    def new_tokens(self) -> list[int]:
        """Tokens of the nodes that wait for their children."""
        return [self.nodes[i].token for i in self.asked[-self.num_new :]]

    def grow(self, tokens: Tensor, logprobs: Tensor, states: Tensor | None = None) -> None:
        """Add what the head expects after the new nodes, or at first after the committed tokens (`Candidates`)."""
        parents = self.asked[-self.num_new :] if self.asked else [ROOT]
        for row, found in enumerate(rank_rows(self.sequence, self.level, tokens, logprobs)):
            parent = parents[row]
            alive = 1.0 if parent == ROOT else self.nodes[parent].alive
            given = None if states is None else states[row]
            for token, chance in found[: self.growth.children]:
                if alive * chance >= self.growth.floor:
                    bucket = confidence_bucket(self.sequence, chance)
                    self.nodes.append(Node(token, parent, self.level + 1, alive * chance, bucket, given))

    @property
    def wish(self) -> TreeWish:
        """What a head that grows the whole tree is asked for."""
        sequence = self.sequence
        position = len(sequence.tokens) - sequence.num_prompt_tokens
        return TreeWish(self.depth, self.limit, self.threshold, sequence.params, sequence.noise_key, position)

    def draft(self, proposer: str) -> Draft | None:
        """Return the likeliest `limit` nodes as a draft."""
        order = sorted(range(len(self.nodes)), key=lambda i: -self.nodes[i].alive)[: self.limit]
        if not order:
            return None
        place = {node: i for i, node in enumerate(order)} | {ROOT: ROOT}
        kept = [self.nodes[i] for i in order]
        return best_first([(n.token, place[n.parent], n.alive, n.bucket) for n in kept], proposer)


def as_draft(sequence: SequenceView, tree: GrownTree, proposer: str) -> Draft | None:
    """Return a tree that a head has grown itself as a draft."""
    buckets = tuple([confidence_bucket(sequence, chance) for chance in tree.chances])
    return Draft(tree.tokens, tree.parents, proposer, tree.survival, buckets=buckets) if tree.tokens else None


def grow(trees: Sequence[HeadTree], tokens: Tensor, logprobs: Tensor, states: Tensor | None = None) -> None:
    """Grow `trees` by rows that follow one another: of each one for every node that waits, or its first one."""
    first = 0
    for tree in trees:
        rows = slice(first, first + (tree.num_new or 1))
        tree.grow(tokens[rows], logprobs[rows], None if states is None else states[rows])
        first = rows.stop


def stack(trees: Sequence[HeadTree]) -> Tensor:  # [sum of asked, hidden] float32
    """Return the states from which the asked nodes of all trees start."""
    given = [tree.nodes[i].given for tree in trees for i in tree.asked]
    return torch.stack([state for state in given if state is not None])
