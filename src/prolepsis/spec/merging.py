"""Two drafts of one sample as one tree: verification takes any union (ALGORITHMS 3.9).

Nodes of equal path become one. How often a token is accepted depends on what the other draft says of it: agreement
makes it likelier, another token in the same place less likely. So a merged draft has calibration buckets of its own, by
agreement and by what its proposer's rate says; the acceptance estimator learns them as those of a proposer, `MERGED`.
"""

from collections.abc import Sequence

from prolepsis.spec.draft import ROOT, Draft, principal_first

MERGED = "merged"
"""Signs merged drafts; their nodes' proposers are in `Draft.sources`."""
_LEVELS = 8  # steps of a rate, in buckets
_SHARED, _FIRST, _SECOND, _CONTESTED = 0, 1, 2, 2  # kinds of nodes; contested ones follow those that stand alone


class _Union:
    """Nodes in the order they came, parents before children."""

    def __init__(self, first: Draft, rates: Sequence[float]) -> None:
        self.tokens = list(first.tokens)
        self.parents = list(first.parents)
        self.rates = list(rates)
        self.sources = list(first.sources or (first.proposer,) * len(first.tokens))
        self.shared: set[int] = set()
        self.num_first = len(first.tokens)
        self._places = {(parent, token): i for i, (token, parent) in enumerate(zip(*_nodes(first), strict=True))}

    def add(self, second: Draft, rates: Sequence[float]) -> None:
        """Add a draft whose nodes are not in yet; a shared one keeps its proposer and takes the better rate."""
        places = {ROOT: ROOT}
        for i, (token, parent) in enumerate(zip(*_nodes(second), strict=True)):
            above = places[parent]
            known = self._places.get((above, token))
            if known is None:
                places[i] = self._append(token, above, rates[i], second.proposer)
            else:
                places[i] = known
                self.shared.add(known)
                self.rates[known] = max(self.rates[known], rates[i])

    def survivals(self) -> list[float]:
        alive: list[float] = []
        for parent, rate in zip(self.parents, self.rates, strict=True):
            alive.append(rate if parent == ROOT else rate * alive[parent])
        return alive

    def buckets(self) -> list[int]:
        """Return each node's bucket: shared, or whose it is and whether the other draft says otherwise there."""
        in_both = set(self.parents[: self.num_first])
        in_both &= {self.parents[i] for i in (*self.shared, *range(self.num_first, len(self.parents)))}
        buckets: list[int] = []
        for i, (parent, rate) in enumerate(zip(self.parents, self.rates, strict=True)):
            if i in self.shared:
                kind = _SHARED
            else:
                kind = (_FIRST if i < self.num_first else _SECOND) + _CONTESTED * (parent in in_both)
            buckets.append(kind * _LEVELS + min(_LEVELS - 1, int(_LEVELS * rate)))
        return buckets

    def _append(self, token: int, parent: int, rate: float, source: str) -> int:
        self.tokens.append(token)
        self.parents.append(parent)
        self.rates.append(rate)
        self.sources.append(source)
        return len(self.tokens) - 1


def merge(
    first: Draft,
    first_rates: Sequence[float],  # of each node given that its parent was accepted, as all rates here
    second: Draft,
    second_rates: Sequence[float],
    limit: int,
) -> Draft:
    """Return the `limit` likeliest nodes of both drafts as one, with their survivals by these rates."""
    union = _Union(first, first_rates)
    union.add(second, second_rates)
    alive, buckets = union.survivals(), union.buckets()
    order = sorted(range(len(alive)), key=lambda i: -alive[i])[:limit]  # stable: parents stay before their children
    place = {ROOT: ROOT} | {node: i for i, node in enumerate(order)}
    order = [order[i] for i in principal_first([place[union.parents[i]] for i in order])]
    place = {ROOT: ROOT} | {node: i for i, node in enumerate(order)}
    return Draft(
        tuple(union.tokens[i] for i in order),
        tuple(place[union.parents[i]] for i in order),
        MERGED,
        tuple(alive[i] for i in order),
        buckets=tuple(buckets[i] for i in order),
        sources=tuple(union.sources[i] for i in order),
    )


def _nodes(draft: Draft) -> tuple[Sequence[int], Sequence[int]]:
    return draft.tokens, draft.parents
