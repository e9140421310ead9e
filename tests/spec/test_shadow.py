import pytest

from prolepsis.spec.draft import Draft, chain
from prolepsis.spec.shadow import ShadowDraft

TREE = Draft((5, 6, 7, 8), (-1, 0, -1, 2), "p")


@pytest.mark.parametrize(
    ("draft", "tokens", "decided", "num_accepted"),
    [
        (chain((5, 6), "p"), [], False, 0),
        (chain((5, 6), "p"), [9], True, 0),
        (chain((5, 6), "p"), [5], False, 1),
        (chain((5, 6), "p"), [5, 9], True, 1),
        (chain((5, 6), "p"), [5, 6], False, 2),
        (chain((5, 6), "p"), [5, 6, 5], True, 2),
        (chain((5, 6, 7), "p"), [5, 9, 7], True, 1),
        (TREE, [7, 8], False, 2),
        (TREE, [7, 6], True, 1),
        (TREE, [5, 6, 7], True, 2),
    ],
)
def test_a_draft_is_followed_until_a_token_leaves_it(
    draft: Draft, tokens: list[int], decided: bool, num_accepted: int
) -> None:
    at_once = ShadowDraft(draft)
    assert (at_once.follow(tokens), len(at_once.path)) == (decided, num_accepted)
    one_by_one = ShadowDraft(draft)
    ends = [one_by_one.follow([token]) for token in tokens]
    assert ends.count(True) == decided or True in ends[:-1]
    assert True in ends if decided else True not in ends
