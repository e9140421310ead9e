import random
from dataclasses import dataclass

import pytest

from prolepsis.engine.drafting.draft import Draft, chain
from prolepsis.engine.drafting.shadow import ShadowBudget, ShadowDraft

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


PASS_S = 0.010


@dataclass
class Served:
    """What came of requests that arrive one after another, each in shadow: how many drafted, and the time that took."""

    num_drafting: int = 0
    num_put_off: int = 0
    spent_s: float = 0.0
    num_passes: int = 0

    @property
    def share(self) -> float:
        return self.spent_s / (self.num_passes * PASS_S)


def serve(budget: ShadowBudget, *, at_once: int, each_s: float, num_passes: int = 20_000) -> Served:
    """Keep `at_once` requests of 20 to 60 passes running."""
    rng, served = random.Random(3), Served()
    running: dict[str, int] = {}
    drafting: set[str] = set()
    for _ in range(num_passes):
        while len(running) < at_once:
            name = f"r{served.num_drafting + served.num_put_off}"
            running[name] = rng.randint(20, 60)
            if budget.admit(name):
                drafting.add(name)
                served.num_drafting += 1
            else:
                served.num_put_off += 1
        spent = each_s * len(drafting)
        if spent:
            budget.spend(spent)
        budget.passed(PASS_S)
        served.spent_s, served.num_passes = served.spent_s + spent, served.num_passes + 1
        for name in list(running):
            running[name] -= 1
            if running[name] == 0:
                del running[name]
                drafting.discard(name)
                budget.end(name)
    return served


def test_without_a_bound_every_request_drafts() -> None:
    assert serve(ShadowBudget(1.0), at_once=8, each_s=0.005).num_put_off == 0


def test_shadow_drafts_within_the_budget_are_not_put_off() -> None:
    served = serve(ShadowBudget(0.02), at_once=1, each_s=0.01 * PASS_S)
    assert served.num_put_off == 0


@pytest.mark.parametrize(("at_once", "each"), [(8, 0.006), (1, 0.5), (32, 0.003), (4, 0.1)])
def test_the_share_is_kept_by_whole_requests(at_once: int, each: float) -> None:
    served = serve(ShadowBudget(0.02), at_once=at_once, each_s=each * PASS_S)
    assert served.num_put_off > 0
    assert served.num_drafting > 10, "some continue drafting"
    assert 0.006 < served.share < 0.024


def test_a_budget_of_0_forbids_and_of_1_allows_all_shadow_drafts() -> None:
    assert serve(ShadowBudget(0.0), at_once=4, each_s=0.001).num_drafting == 0
    assert serve(ShadowBudget(0.9), at_once=8, each_s=0.0005).num_put_off == 7, (
        "until the first has shown what one takes"
    )
