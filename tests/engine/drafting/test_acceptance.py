import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prolepsis.core.requests import UNCOUNTED_CLASS
from prolepsis.core.stats import AcceptanceState
from prolepsis.engine.drafting.acceptance import AcceptanceEstimator, Scoreboard, survivals
from prolepsis.engine.drafting.draft import Draft, chain
from tests.engine.drafting.drafts import rate
from tests.engine.drafting.sequences import FakeSequence


def test_starts_from_the_prior_and_converges_to_the_rate() -> None:
    estimator, rng = AcceptanceEstimator(prior=0.6), random.Random(0)
    draft = chain((1,), "p")
    assert rate(estimator, "p", 0, 0) == 0.6
    for _ in range(3000):
        estimator.record(draft, 0, 0, hit=rng.random() < 0.25)
    assert rate(estimator, "p", 0, 0) == pytest.approx(0.25, abs=0.05)


def test_follows_a_change_within_some_half_lives() -> None:
    estimator, draft = AcceptanceEstimator(), chain((1,), "p")
    for hit in [True] * 2000 + [False] * 2000:
        estimator.record(draft, 0, 0, hit=hit)
    assert rate(estimator, "p", 0, 0) < 0.1


def test_few_trials_are_shrunk_to_the_bucket_and_a_new_bucket_to_the_pool() -> None:
    estimator = AcceptanceEstimator(prior=0.5)
    for _ in range(1000):
        estimator.record(chain((1,), "p", bucket=3), 0, 0, hit=True)
    estimator.record(chain((1, 2), "p", bucket=3), 1, 1, hit=False)
    assert 0.8 < rate(estimator, "p", 3, 1) < 1.0  # one miss at a position does not make it hopeless
    assert rate(estimator, "p", 9, 0) > 0.95  # a bucket nobody saw goes by its proposer
    assert rate(estimator, "q", 0, 0) == 0.5  # another proposer by the prior


def test_the_proposers_own_estimate_is_the_prior_of_its_buckets() -> None:
    estimator = AcceptanceEstimator()
    draft = Draft((5, 6), (-1, 0), "p", survival=(0.3, 0.15), buckets=(1, 2))
    assert survivals(draft, estimator.rates(draft)) == pytest.approx((0.3, 0.15))
    for _ in range(2000):
        estimator.record(draft, 0, 0, hit=True)
    assert survivals(draft, estimator.rates(draft))[0] > 0.95


def test_what_another_engine_learned_counts_for_few_trials() -> None:
    learned, begun, draft = AcceptanceEstimator(), AcceptanceEstimator(), chain((1,), "p", bucket=3)
    assert learned.state("p") is None
    for i in range(4000):
        learned.record(draft, 0, 0, hit=i % 4 == 0)
    state = learned.state("p")
    assert state is not None
    begun.begin_from("p", AcceptanceState.from_json(state.to_json()))
    assert rate(begun, "p", 3, 0) == pytest.approx(rate(learned, "p", 3, 0), abs=0.002)
    assert begun.survival("p", 2) == pytest.approx(learned.survival("p", 2), abs=0.002)
    for _ in range(150):
        begun.record(draft, 0, 0, hit=True)
    known = rate(begun, "p", 3, 0)
    assert known > 0.75
    begun.begin_from("p", state)
    assert rate(begun, "p", 3, 0) == known, "what it learned itself stays"


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9), st.booleans()), max_size=200))
def test_survival_never_rises_and_stays_a_probability(trials: list[tuple[int, int, bool]]) -> None:
    estimator = AcceptanceEstimator()
    for bucket, position, hit in trials:
        estimator.record(chain(tuple(range(10)), "p", bucket=bucket), position, position, hit=hit)
    alive = estimator.survival("p", 16)
    assert len(alive) == 16
    assert all(0.0 <= b <= a <= 1.0 for a, b in zip((1.0, *alive), alive, strict=False))


def test_the_likeliest_nodes_estimate_the_gain_of_a_proposer() -> None:
    estimator = AcceptanceEstimator()
    draft = Draft((1, 2, 3), (-1, -1, 0), "p")
    for _ in range(400):
        estimator.record(draft, 0, 0, hit=True)
        estimator.record(draft, 1, 0, hit=False, first=False)
        estimator.record(draft, 2, 1, hit=False)
    first, second = estimator.survival("p", 2)
    assert first > 0.9
    assert second < 0.1


def test_a_childs_survival_is_never_above_its_parents() -> None:
    draft = Draft((1, 2, 3, 4), (-1, 0, -1, 2), "p", survival=(0.6, 0.5, 0.3, 0.3))
    alive = survivals(draft, [5.0 * rate for rate in AcceptanceEstimator().rates(draft)])
    assert alive[1] <= alive[0] <= 1.0
    assert alive[3] <= alive[2] <= 1.0


def test_a_position_is_a_trial_only_if_all_before_it_were_committed() -> None:
    estimator = AcceptanceEstimator(prior=0.5)
    board, sequence = Scoreboard(estimator), FakeSequence([1, 2])
    board.add(sequence, chain((7, 8, 9), "p"))
    sequence.tokens += [7, 5, 9]
    board.commit(sequence)
    assert rate(estimator, "p", 0, 0) > 0.5
    assert rate(estimator, "p", 0, 1) < rate(estimator, "p", 0, 0)
    assert estimator.trials("p", 0, 0) == (1.0, 1.0)
    assert estimator.trials("p", 0, 1) == (0.0, 1.0)
    assert estimator.trials("p", 0, 2) == (0.0, 0.0)  # 9 followed, but after another token


def test_tokens_that_come_one_by_one_are_judged_when_they_come() -> None:
    estimator = AcceptanceEstimator()
    board, sequence = Scoreboard(estimator), FakeSequence([1])
    board.add(sequence, chain((7, 8), "p"))
    board.commit(sequence)
    assert estimator.trials("p", 0, 0) == (0.0, 0.0)
    for token in (7, 8):
        sequence.tokens.append(token)
        board.commit(sequence)
    assert [estimator.trials("p", 0, j)[0] for j in (0, 1)] == [1.0, 1.0]
    assert board._pending["r0/0"] == []


def test_every_sibling_is_a_trial() -> None:
    estimator = AcceptanceEstimator()
    board, sequence = Scoreboard(estimator), FakeSequence([1])
    board.add(sequence, Draft((7, 8, 5, 6), (-1, 0, -1, 2), "p", buckets=(0, 1, 2, 3)))
    sequence.tokens += [5, 9]
    board.commit(sequence)
    trials = [estimator.trials("p", bucket, depth) for bucket, depth in ((0, 0), (1, 1), (2, 0), (3, 1))]
    assert trials == [(0.0, 1.0), (0.0, 0.0), (1.0, 1.0), (0.0, 1.0)]


def test_a_draft_that_is_rarely_verified_gets_the_same_estimate() -> None:
    """Censoring: the deeper positions of a draft that the window cuts off are still judged, without bias."""
    estimator, rng = AcceptanceEstimator(), random.Random(1)
    board, sequence = Scoreboard(estimator), FakeSequence([0])
    for _ in range(3000):
        board.add(sequence, chain((1, 1, 1), "p"))
        sequence.tokens.append(1 if rng.random() < 0.6 else 0)  # one token a step: nothing was verified
        board.commit(sequence)
    for position in range(3):
        assert rate(estimator, "p", 0, position) == pytest.approx(0.6, abs=0.1)


def test_an_ended_sequence_leaves_nothing_behind() -> None:
    estimator = AcceptanceEstimator()
    board, sequence = Scoreboard(estimator), FakeSequence([1])
    board.add(sequence, chain((7,), "p"))
    sequence.tokens.append(7)
    board.commit(sequence)
    board.drop(sequence)
    assert not board._pending
    assert not board._num_judged


def _two_classes(num_good: int, num_poor: int) -> AcceptanceEstimator:
    """Judge drafts of the same buckets in a class in which they fit better, and in one in which they fit less."""
    estimator, rng = AcceptanceEstimator(), random.Random(3)
    order = rng.sample([*["good"] * num_good, *["poor"] * num_poor], num_good + num_poor)
    for traffic_class in order:
        bucket = rng.randrange(3)
        hit = rng.random() < CHANCES[traffic_class][bucket]
        estimator.record(chain((1,), "p", bucket=bucket), 0, 0, hit=hit, traffic_class=traffic_class)
    return estimator


CHANCES = {"good": (0.9, 0.6, 0.3), "poor": (0.6, 0.2, 0.07)}  # the odds differ by six


def test_a_class_has_rates_of_its_own_in_each_bucket() -> None:
    estimator = _two_classes(3000, 600)
    for traffic_class, chances in CHANCES.items():
        rates = [estimator.rates(chain((1,), "p", bucket=bucket), traffic_class)[0] for bucket in range(3)]
        assert rates == pytest.approx(chances, abs=0.12), traffic_class
        assert estimator.survival("p", 1, traffic_class)[0] == pytest.approx(sum(chances) / 3, abs=0.12)
    shared, poor = (estimator.rates(chain((1,), "p"), name)[0] for name in ("new", "poor"))
    assert shared == pytest.approx(0.85, abs=0.1), "a class without trials has the rates of all"
    assert poor < shared - 0.1


def test_a_class_with_few_trials_stays_near_the_rates_of_all() -> None:
    estimator = _two_classes(3000, 1)
    draft = chain((1,), "p")
    few, shared = estimator.rates(draft, "poor")[0], estimator.rates(draft)[0]
    assert few == pytest.approx(shared, abs=0.06)
    for _ in range(40):
        estimator.record(draft, 0, 0, hit=False, traffic_class="poor")
    assert estimator.rates(draft, "poor")[0] < 0.5 * estimator.rates(draft, "good")[0]


def test_one_class_alone_changes_no_rate() -> None:
    rng, with_class, without = random.Random(4), AcceptanceEstimator(), AcceptanceEstimator()
    for _ in range(200):
        draft, hit = chain((1,), "p", bucket=rng.randrange(2)), rng.random() < 0.4
        with_class.record(draft, 0, 0, hit=hit, traffic_class="one")
        with_class.record(draft, 0, 0, hit=hit, traffic_class=UNCOUNTED_CLASS)
        without.record(draft, 0, 0, hit=hit)
        without.record(draft, 0, 0, hit=hit)
    assert with_class.rates(chain((1, 2), "p"), "one") == without.rates(chain((1, 2), "p"))


def test_an_exchanged_proposer_starts_over_in_each_class() -> None:
    estimator = _two_classes(300, 300)
    estimator.forget("p")
    assert estimator.survival("p", 1, "poor") == estimator.survival("p", 1, "good") == (0.6,)
