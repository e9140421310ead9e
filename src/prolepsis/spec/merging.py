"""Two drafts of one sample as one tree: verification takes any union (ALGORITHMS 3.9).

Nodes of equal path become one. How often a token is accepted depends on what the other draft says of it: agreement
makes it likelier, another token in the same place less likely. So a merged draft has calibration buckets of its own, by
agreement and by what its proposer's rate says; the acceptance estimator learns them as those of a proposer, `MERGED`.
"""

from dataclasses import dataclass
from math import log

from prolepsis.spec.draft import ROOT, Draft, principal_first
from prolepsis.spec.turn import Rated

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
