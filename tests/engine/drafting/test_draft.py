"""What is left of a draft once tokens are committed, against all paths of its tree."""

from hypothesis import given
from hypothesis import strategies as st

from prolepsis.engine.drafting.draft import ROOT, Draft, best_first, chain

Path = tuple[int, ...]


@st.composite
def trees(draw: st.DrawFn) -> Draft:
    size = draw(st.integers(1, 12))
    nodes: list[tuple[int, int, float, int]] = []
    for i in range(size):
        parent = draw(st.integers(ROOT, i - 1))
        taken = {token for token, other, *_ in nodes if other == parent}
        token = draw(st.sampled_from([token for token in range(14) if token not in taken]))
        above = 1.0 if parent == ROOT else nodes[parent][2]
        nodes.append((token, parent, above * draw(st.floats(0.1, 1.0)), i))
    return best_first(nodes, "tree")


def paths(draft: Draft) -> dict[Path, tuple[float, int]]:
    """Return the tokens down to each node, with its survival and bucket."""
    found: dict[int, Path] = {ROOT: ()}
    for node, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
        found[node] = (*found[parent], token)
    return {found[node]: (draft.survival[node], draft.buckets[node]) for node in range(len(draft.tokens))}


@given(trees(), st.data())
def test_after_tokens_the_paths_below_them_are_left(draft: Draft, data: st.DataObject) -> None:
    every = paths(draft)
    tokens = data.draw(st.sampled_from([(), *every]))
    left = draft.after(tokens)
    assert left is not None
    alive = every[tokens][0] if tokens else 1.0
    below = {path[len(tokens) :]: at for path, at in every.items() if path[: len(tokens)] == tokens and path != tokens}
    assert {path: bucket for path, (_, bucket) in paths(left).items()} == {path: b for path, (_, b) in below.items()}
    assert all(abs(paths(left)[path][0] - survival / alive) < 1e-9 for path, (survival, _) in below.items())
    assert left.fault(14, 12) is None


@given(trees(), st.lists(st.integers(0, 13), max_size=4))
def test_a_draft_that_the_tokens_leave_is_used_up(draft: Draft, tokens: list[int]) -> None:
    assert (draft.after(tokens) is None) == (tuple(tokens) not in {(), *paths(draft)})


@given(trees(), st.integers(0, 12))
def test_the_likeliest_nodes_are_a_draft(draft: Draft, size: int) -> None:
    kept = draft.likeliest(size)
    assert kept.fault(14, size) is None
    assert sorted(kept.survival) == sorted(draft.survival)[::-1][:size][::-1]


def test_a_chain_without_estimates_is_cut() -> None:
    draft = chain((1, 2, 3, 4), "chain", bucket=2)
    assert draft.after((1,)) == chain((2, 3, 4), "chain", bucket=2)
    assert draft.likeliest(2) == chain((1, 2), "chain", bucket=2)
    assert draft.after((1, 2, 3, 4)) == chain((), "chain", bucket=2)
