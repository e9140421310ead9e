"""One sequence in one call of `ProposerSet.propose`: what it may have, and its best draft so far."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

from prolepsis.core.stats import PlainReason
from prolepsis.grammar.matcher import Matcher
from prolepsis.spec.acceptance import AcceptanceEstimator, survivals
from prolepsis.spec.draft import ROOT, Draft, principal_first
from prolepsis.spec.effort import value
from prolepsis.spec.proposer import SequenceView
from prolepsis.spec.scoring import Scoreboard


@dataclass(frozen=True, slots=True)
class Rated:
    """A draft with what is expected of it for one sequence."""

    draft: Draft
    survivals: tuple[float, ...]
    """Chance of each node to be accepted with all its ancestors."""
    worth: float
    """Expected accepted tokens, less the price of the rows they take."""


@dataclass(slots=True)
class Turn:
    """A sequence while proposers compete for it."""

    sequence: SequenceView
    limit: int
    """Most draft nodes; 0: none."""
    allowed: tuple[str, ...] | None
    """Proposers that may draft for it; None: all."""
    judged: bool
    """Its drafts are scored against the tokens to come: each sequence every few steps where there are many."""
    forced: bool = False
    """Its draft is verified whole, whatever it is worth."""
    shadow: bool = False
    """Its draft is compared, never verified."""
    best: Rated | None = None
    asked: bool = False
    """Some proposer was asked for it."""
    spared: bool = False
    """A costly proposer was not, since that was not worth its time."""
    rested: bool = False
    """A proposer that may draft for it rests."""

    def allows(self, proposer: str) -> bool:
        return self.limit > 0 and (self.allowed is None or proposer in self.allowed)

    def plain(self, draft: Draft | None, *, weighed: bool) -> PlainReason | None:
        """Return why the sequence is decoded plainly where `draft`, what is verified of its best, is None.

        `weighed`: drafts are verified where they are worth it; else only for want of room they are not.
        """
        if draft is not None:
            return None
        if self.best is not None:
            return "not_worth_it" if weighed and not self.forced else "no_room"
        if self.limit <= 0:
            return "no_room"
        if self.spared:
            return "too_costly"
        return "resting" if self.rested and not self.asked else "no_draft"

    @property
    def draft(self) -> Draft | None:
        return self.best.draft if self.best else None

    @property
    def survivals(self) -> tuple[float, ...]:
        return self.best.survivals if self.best else ()

    @property
    def worth(self) -> float:
        return self.best.worth if self.best else 0.0


MERGED = "merged"
"""Signs merged drafts; their nodes' proposers are in `Draft.sources`."""
_LEVELS = 17  # steps of a rate's log-odds, in buckets: chains multiply rates near 1, where a step must be small
_GRID = 256
_LEVEL = [  # by rate in steps of the grid
    min(8, max(-8, round(2.0 * log((i + 0.5) / (_GRID - i - 0.5))))) + 8 for i in range(_GRID)
]
_SHARED, _FIRST, _SECOND, _CONTESTED = 0, 1, 2, 2  # kinds of nodes; contested ones follow those that stand alone


def merge(first: Rated, second: Rated, limit: int, floor: float = 0.0) -> Draft:
    """Return the `limit` likeliest nodes of both drafts as one, with what their estimates together give as survivals.

    A node that survives no more often than `floor` is left out.
    """
    nodes = _union(first, second, floor)
    ranked = sorted(zip([-alive for alive in nodes.alive], range(len(nodes.alive)), strict=True))
    likeliest = [i for _, i in ranked[:limit]]  # parents stay before their children
    place = {node: i for i, node in enumerate(likeliest)} | {ROOT: ROOT}
    order = [likeliest[i] for i in principal_first([place[nodes.parents[i]] for i in likeliest])]
    place = {node: i for i, node in enumerate(order)} | {ROOT: ROOT}
    return Draft(
        tuple([nodes.tokens[i] for i in order]),
        tuple([place[nodes.parents[i]] for i in order]),
        MERGED,
        tuple([nodes.alive[i] for i in order]),
        buckets=tuple([nodes.bucket(i) for i in order]),
        sources=tuple([nodes.sources[i] for i in order]),
    )


@dataclass(slots=True)
class _Nodes:
    """Of both drafts, parents before children: the first's, then what only the second has."""

    tokens: list[int]
    parents: list[int]
    sources: list[str]
    rates: list[float]
    kinds: list[int]
    alive: list[float]
    contested: set[int]
    """Parents after which both drafts say something."""

    def bucket(self, node: int) -> int:
        """Return the calibration bucket: shared, or whose it is and whether the other draft says otherwise there."""
        kind = self.kinds[node]
        if kind != _SHARED and self.parents[node] in self.contested:
            kind += _CONTESTED
        return kind * _LEVELS + _LEVEL[int(_GRID * self.rates[node])]


def _union(first: Rated, second: Rated, floor: float) -> _Nodes:
    nodes = _Nodes([], [], [], [], [], [], set())
    known: dict[tuple[int, int], int] = {}
    above = [_add(nodes, known, rated, kind, floor) for rated, kind in ((first, _FIRST), (second, _SECOND))]
    for parent, rate in zip(nodes.parents, nodes.rates, strict=True):
        nodes.alive.append(rate if parent == ROOT else rate * nodes.alive[parent])
    nodes.contested = above[0] & above[1]
    return nodes


def _add(nodes: _Nodes, known: dict[tuple[int, int], int], rated: Rated, kind: int, floor: float) -> set[int]:
    """Add a draft's nodes and return their parents; a shared node keeps its proposer and takes the better rate."""
    draft, survivals = rated.draft, rated.survivals
    places: list[int] = []
    above: set[int] = set()
    for i, (token, parent, alive) in enumerate(zip(draft.tokens, draft.parents, survivals, strict=True)):
        if alive <= floor:  # so are all nodes below it
            places.append(ROOT)
            continue
        at, rate = (ROOT, alive) if parent == ROOT else (places[parent], alive / survivals[parent])
        above.add(at)
        node = known.get((at, token))
        if node is None:
            node = known[at, token] = len(nodes.tokens)
            nodes.tokens.append(token)
            nodes.parents.append(at)
            nodes.sources.append(draft.sources[i] if draft.sources else draft.proposer)
            nodes.rates.append(rate)
            nodes.kinds.append(kind)
        else:
            nodes.kinds[node] = _SHARED
            nodes.rates[node] = max(nodes.rates[node], rate)
        places.append(node)
    return above


FORCED_RATE = 0.998
"""Acceptance to expect of a token that the grammar forces: it is the only one its mask allows."""


def within_grammar(draft: Draft, matcher: Matcher) -> Draft | None:
    """Return the draft without the nodes whose path leaves the grammar, None where no node stays.

    None also where the grammar cannot say: then it cannot say what may be sampled either, and verification reports it.
    """
    try:
        if draft.is_chain:
            size = matcher.accepted(draft.tokens)
            return None if size == 0 else draft if size == len(draft.tokens) else draft.cut(size)
        kept: set[int] = set()
        for path in _paths(draft):
            kept.update(path[: matcher.accepted([draft.tokens[node] for node in path])])
    except Exception:  # contained: see above
        return None
    if len(kept) == len(draft.tokens):
        return draft
    return draft.select(sorted(kept)) if kept else None


def forced_nodes(draft: Draft, matcher: Matcher) -> list[int]:
    """Return the draft's nodes on the path that the grammar forces, from the root down."""
    forced, nodes, above = matcher.forced(), list[int](), ROOT
    for node, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
        if len(nodes) < len(forced) and parent == above and token == forced[len(nodes)]:
            nodes.append(node)
            above = node
    return nodes


def _paths(draft: Draft) -> list[list[int]]:
    """Return the nodes from the root to each leaf."""
    paths: list[list[int]] = []
    inner = set(draft.parents)
    for leaf in range(len(draft.tokens)):
        if leaf not in inner:
            path = [leaf]
            while (parent := draft.parents[path[-1]]) != ROOT:
                path.append(parent)
            paths.append(path[::-1])
    return paths


_MARGIN = 1.05  # a later proposer must be so much better: choosing the largest of noisy estimates costs otherwise


_FLOOR = 0.5  # of the price: nodes that are not worth their row are not merged


class Rating:
    """Rates drafts by the acceptance estimates and puts them on the scoreboard to be judged, chosen or not."""

    def __init__(self, acceptance: AcceptanceEstimator, board: Scoreboard) -> None:
        self._acceptance = acceptance
        self._board = board

    def compete(self, turn: Turn, draft: Draft, price: float) -> Rated | None:
        """Let `draft` be the sequence's where it is worth more than the best so far; return it rated.

        What leaves the sequence's grammar is cut off before; None where nothing is left.
        """
        kept = within_grammar(draft, turn.sequence.matcher) if turn.sequence.matcher is not None else draft
        if kept is None:
            return None
        rated = self._rated(turn, kept, self._board.tilt(turn.sequence, kept.proposer).factor, price)
        if turn.best is None or rated.worth > _MARGIN * turn.best.worth:
            turn.best = rated
        return rated

    def join(self, turn: Turn, draft: Draft, price: float) -> float:
        """Merge `draft` with the best so far, where both say something; return what its own nodes are worth then.

        The merged tree has estimates of its own, that know whether its parts agree. Whatever one part alone would be
        worth by them is in it, so it is kept: the window cuts what is not worth its row.
        """
        other = turn.best
        rated = self.compete(turn, draft, price)
        if rated is None:
            return 0.0
        if other is not None:
            union = merge(other, rated, turn.limit, 0.0 if turn.forced else _FLOOR * price)
            if union.tokens:
                turn.best = merged = self._rated(turn, union, 1.0, price)
                own = zip(merged.survivals, union.sources, strict=True)
                return value([alive for alive, source in own if source == draft.proposer], price)
        return rated.worth

    def _rated(self, turn: Turn, draft: Draft, tilt: float, price: float) -> Rated:
        """Rate a draft for its sequence; what the grammar forces is as good as accepted."""
        matcher = turn.sequence.matcher
        expected = self._acceptance.rates(draft)
        if matcher is None:
            alive = survivals(draft, expected, tilt)
        else:
            rates = [tilt * rate for rate in expected]
            for node in forced_nodes(draft, matcher):
                expected[node] = rates[node] = FORCED_RATE
            alive = survivals(draft, rates)
        if turn.judged:
            self._board.add(turn.sequence, draft, expected)
        return Rated(draft, alive, value(alive, price))


def levels(draft: Draft, alive: Sequence[float]) -> tuple[float, ...]:
    """Return for each depth the chance that some node there is accepted; of a node's children at most one is."""
    chances: list[float] = []
    for depth, chance in zip(draft.depths(), alive, strict=True):
        if depth > len(chances):
            chances.append(0.0)
        chances[depth - 1] += chance
    return tuple(min(1.0, chance) for chance in chances)
