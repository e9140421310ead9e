"""A sequence while proposers compete for it: its best draft so far, how drafts are scored, merged and pruned."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

from prolepsis.core.config import MERGED
from prolepsis.core.reasons import PlainReason
from prolepsis.engine.drafting.acceptance import Scoreboard, survivals
from prolepsis.engine.drafting.draft import ROOT, Draft, principal_first
from prolepsis.engine.drafting.effort import value
from prolepsis.engine.drafting.proposer import SequenceView
from prolepsis.engine.native.proposing import draft_kernel
from prolepsis.engine.text.grammar.matcher import Matcher


@dataclass(frozen=True, slots=True)
class ScoredDraft:
    draft: Draft
    survivals: tuple[float, ...]  # chance of each node to be accepted with all its ancestors
    gain: float  # expected accepted tokens, less the marginal cost of verifying them


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """Limits on the draft of one decoding sequence in a step."""

    sequence: SequenceView
    limit: int  # most draft nodes, by its own ceiling, its context and the tokens it may still emit; 0: none
    allowed: tuple[str, ...] | None = None  # proposers that may draft; None: every proposer of the plan
    always_verify: bool = False  # its draft is verified whole, whether or not the cost curve says that it pays
    insists_on: tuple[str, ...] = ()  # proposers that are asked even if their time does not pay
    urgency: int = 0  # by its latency target (`engine.drafting.urgency`)

    def allows(self, proposer: str) -> bool:
        return self.allowed is None or proposer in self.allowed


@dataclass(slots=True)
class DraftCandidate:
    request: DraftRequest
    limit: int  # most draft nodes in this step; 0: none
    judged: bool  # its drafts are scored against the tokens to come: among many sequences, each every few steps
    is_counted: bool  # its drafts may be verified where they pay, so that their cost counts for its traffic class
    best: ScoredDraft | None = None
    asked: bool = False  # some proposer was called for it
    skipped_cost: bool = False  # a costly proposer was not called, as its time would not pay
    is_lent: bool = False  # the memory of a proposer that may draft for it is lent
    in_backoff: bool = False  # a proposer that may draft for it backs off after failures

    @property
    def sequence(self) -> SequenceView:
        return self.request.sequence

    def allows(self, proposer: str) -> bool:
        return self.limit > 0 and self.request.allows(proposer)

    def plain(self, draft: Draft | None, *, weighed: bool) -> PlainReason | None:
        """Return why the sequence is decoded plainly if `draft`, the part of its best that is verified, is None.

        `weighed`: drafts are verified where they pay; otherwise all that the pass has room for.
        """
        if draft is not None:
            return None
        if self.best is not None:
            return "not_worth_it" if weighed and not self.request.always_verify else "no_capacity"
        if self.limit <= 0:
            return "no_capacity"
        if self.skipped_cost:
            return "too_costly"
        if self.is_lent:
            return "memory_lent"
        return "backoff" if self.in_backoff and not self.asked else "no_draft"

    @property
    def draft(self) -> Draft | None:
        return self.best.draft if self.best else None

    @property
    def survivals(self) -> tuple[float, ...]:
        return self.best.survivals if self.best else ()

    def selected(self, nodes: Sequence[int]) -> Draft | None:
        return self.draft.select(nodes) if self.draft is not None and nodes else None

    def compete(self, draft: Draft, board: Scoreboard, token_cost: float) -> ScoredDraft | None:
        """Make `draft` the best if it gains more than the best so far; return it scored.

        Nodes that leave the sequence's grammar are cut off first; None if none is left.
        """
        matcher = self.sequence.matcher
        kept = within_grammar(draft, matcher) if matcher is not None else draft
        if kept is None:
            return None
        scored = self._scored(kept, board, token_cost)
        if self.best is None or scored.gain > self.best.gain:
            self.best = scored
        return scored

    def join(self, draft: Draft, board: Scoreboard, token_cost: float) -> None:
        """Merge `draft` with the best so far, if there is one.

        The merged tree has estimates of its own, which know whether its parts agree. It contains each part, so nothing
        is lost: the window cuts the nodes that do not pay.
        """
        best = self.best
        scored = self.compete(draft, board, token_cost)
        if scored is not None and best is not None:
            union = merge(best, scored, self.limit)
            if union.tokens:
                self.best = self._scored(union, board, token_cost)

    def _scored(self, draft: Draft, board: Scoreboard, token_cost: float) -> ScoredDraft:
        """Score a draft by the acceptance estimates, and have it judged, chosen or not.

        A token that the grammar forces is as good as accepted.
        """
        matcher = self.sequence.matcher
        rates = board.acceptance.rates(draft, self.sequence.traffic_class)
        if matcher is not None:
            for node in forced_nodes(draft, matcher):
                rates[node] = FORCED_RATE
        alive = survivals(draft, rates)
        if self.judged:
            board.add(self.sequence, draft)
        return ScoredDraft(draft, alive, value(alive, token_cost))


_LEVELS = 17  # steps of a rate's log-odds, in buckets: chains multiply rates near 1, where a step must be small
_GRID = 256
_LEVEL = [  # by rate in steps of the grid
    min(8, max(-8, round(2.0 * log((i + 0.5) / (_GRID - i - 0.5))))) + 8 for i in range(_GRID)
]
_SHARED, _FIRST, _SECOND, _CONTESTED = 0, 1, 2, 2  # kinds of nodes; contested ones follow those that stand alone


def merge(first: ScoredDraft, second: ScoredDraft, limit: int) -> Draft:
    """Return the `limit` likeliest nodes of both drafts as one; both estimates together give their survivals."""
    kernel = draft_kernel()
    if kernel is None:
        return merge_in_python(first, second, limit)
    drafts = (first.draft, second.draft)
    one, other = ((scored.draft.tokens, scored.draft.parents, scored.survivals) for scored in (first, second))
    (tokens, parents, survival, buckets), origins = kernel.merge(one, other, limit)
    names = [name for draft in drafts for name in draft.sources or (draft.proposer,) * len(draft.tokens)]
    sources = tuple([names[origin] for origin in origins])
    return Draft(tokens, parents, MERGED, survival, buckets=buckets, sources=sources)


def merge_in_python(first: ScoredDraft, second: ScoredDraft, limit: int) -> Draft:
    """Do `merge` where nothing can be compiled: the readable reference of `sources/merge.h`."""
    nodes: list[_Node] = []  # those that only the second draft has are last
    known: dict[tuple[int, int], int] = {}
    above = [_add(nodes, known, scored, kind) for scored, kind in ((first, _FIRST), (second, _SECOND))]
    for node in nodes:
        node.survival = node.rate if node.parent == ROOT else node.rate * nodes[node.parent].survival
        if node.kind != _SHARED and node.parent in above[0] & above[1]:  # the other draft has another token there
            node.kind += _CONTESTED
    likeliest = sorted(range(len(nodes)), key=lambda i: -nodes[i].survival)[:limit]  # parents stay before children
    place = {node: i for i, node in enumerate(likeliest)} | {ROOT: ROOT}
    kept = [nodes[i] for i in likeliest]
    union = Draft(
        tuple([node.token for node in kept]),
        tuple([place[node.parent] for node in kept]),
        MERGED,
        tuple([node.survival for node in kept]),
        buckets=tuple([node.kind * _LEVELS + _LEVEL[int(_GRID * node.rate)] for node in kept]),
        sources=tuple([node.source for node in kept]),
    )
    return union.reorder(principal_first(union.parents))


@dataclass(slots=True)
class _Node:
    """A node of one of the drafts or of both; a shared node keeps its first proposer and takes the better rate."""

    token: int
    parent: int
    source: str
    rate: float
    kind: int
    survival: float = 0.0


def _add(nodes: list[_Node], known: dict[tuple[int, int], int], scored: ScoredDraft, kind: int) -> set[int]:
    draft, survivals = scored.draft, scored.survivals
    places: list[int] = []
    above: set[int] = set()
    for i, (token, parent, alive) in enumerate(zip(draft.tokens, draft.parents, survivals, strict=True)):
        if alive <= 0.0:  # so are all nodes below it
            places.append(ROOT)
            continue
        at, rate = (ROOT, alive) if parent == ROOT else (places[parent], alive / survivals[parent])
        above.add(at)
        place = known.get((at, token))
        if place is None:
            place = known[at, token] = len(nodes)
            nodes.append(_Node(token, at, draft.sources[i] if draft.sources else draft.proposer, rate, kind))
        else:
            nodes[place].kind, nodes[place].rate = _SHARED, max(nodes[place].rate, rate)
        places.append(place)
    return above


FORCED_RATE = 0.998  # acceptance to expect of a token that the grammar forces: it is the only one its mask allows


def within_grammar(draft: Draft, matcher: Matcher) -> Draft | None:
    """Return the draft without the nodes whose path leaves the grammar, None if none stays.

    None also if the grammar fails: then verification fails too, and reports it.
    """
    kept, inner = set[int](), set(draft.parents)
    try:
        for leaf in range(len(draft.tokens)):
            if leaf not in inner:
                path = [leaf]
                while (parent := draft.parents[path[-1]]) != ROOT:
                    path.append(parent)
                path.reverse()
                kept.update(path[: matcher.accepted([draft.tokens[node] for node in path])])
    except Exception:  # contained: see above
        return None
    return draft.select(sorted(kept)) if kept else None


def forced_nodes(draft: Draft, matcher: Matcher) -> list[int]:
    """Return the draft's nodes on the path that the grammar forces, from the root down."""
    forced, nodes, above = matcher.forced(), list[int](), ROOT
    for node, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
        if len(nodes) < len(forced) and parent == above and token == forced[len(nodes)]:
            nodes.append(node)
            above = node
    return nodes


def levels(draft: Draft, alive: Sequence[float]) -> tuple[float, ...]:
    """Return for each depth the chance that some node there is accepted; of a node's children at most one is."""
    chances: list[float] = []
    for depth, chance in zip(draft.depths(), alive, strict=True):
        if depth > len(chances):
            chances.append(0.0)
        chances[depth - 1] += chance
    return tuple(min(1.0, chance) for chance in chances)
