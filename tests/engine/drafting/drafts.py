"""Hypothesis strategies of drafts, and the paths they hold."""

from hypothesis import strategies as st

from prolepsis.engine.drafting.acceptance import AcceptanceEstimator
from prolepsis.engine.drafting.draft import ROOT, Draft, chain, principal_first


@st.composite
def trees(draw: st.DrawFn, name: str = "p", max_size: int = 7, num_tokens: int = 3) -> Draft:
    """Return a sound draft: principal chain first, no twins; few tokens, so that two of them meet."""
    nodes: list[tuple[int, int]] = []
    for _ in range(draw(st.integers(1, max_size))):
        node = (draw(st.integers(1, num_tokens)), draw(st.integers(ROOT, len(nodes) - 1)))
        if node not in nodes:
            nodes.append(node)
    order = principal_first([parent for _, parent in nodes])
    place = {ROOT: ROOT} | {node: i for i, node in enumerate(order)}
    return Draft(tuple(nodes[i][0] for i in order), tuple(place[nodes[i][1]] for i in order), name)


def rates(draft: Draft, least: float = 0.02) -> st.SearchStrategy[list[float]]:
    """Return a strategy of conditional rates, one a node."""
    size = len(draft.tokens)
    return st.lists(st.floats(least, 0.998), min_size=size, max_size=size)


def rate(estimator: AcceptanceEstimator, proposer: str, bucket: int, position: int) -> float:
    """Return the chance that the token at `position` (0 first) is accepted, given that all before it were."""
    return estimator.rates(chain(tuple(range(position + 1)), proposer, bucket=bucket))[position]


def paths(draft: Draft) -> dict[tuple[int, ...], int]:
    """Return the node at the end of each token path of the draft."""
    found: dict[int, tuple[int, ...]] = {ROOT: ()}
    for node, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
        found[node] = (*found[parent], token)
    del found[ROOT]
    assert len(set(found.values())) == len(found), "no twins"
    return {path: node for node, path in found.items()}
