import random

import pytest

from prolepsis.spec.acceptance import AcceptanceEstimator
from prolepsis.spec.draft import Draft, chain
from prolepsis.spec.scoring import Scoreboard
from tests.spec.samples import FakeSample


def test_a_position_is_a_trial_only_if_all_before_it_were_committed() -> None:
    estimator = AcceptanceEstimator(prior=0.5)
    board, sample = Scoreboard(estimator), FakeSample([1, 2])
    board.add(sample, chain((7, 8, 9), "p"))
    sample.tokens += [7, 5, 9]
    board.commit(sample)
    assert estimator.rate("p", 0, 0) > 0.5
    assert estimator.rate("p", 0, 1) < estimator.rate("p", 0, 0)
    assert (estimator._positions["p", 0, 0].trials, estimator._positions["p", 0, 1].trials) == (1.0, 1.0)
    assert ("p", 0, 2) not in estimator._positions  # 9 followed, but after another token


def test_tokens_that_come_one_by_one_are_judged_when_they_come() -> None:
    estimator = AcceptanceEstimator()
    board, sample = Scoreboard(estimator), FakeSample([1])
    board.add(sample, chain((7, 8), "p"))
    board.commit(sample)
    assert estimator._positions == {}
    for token in (7, 8):
        sample.tokens.append(token)
        board.commit(sample)
    assert [estimator._positions["p", 0, j].hits for j in (0, 1)] == [1.0, 1.0]
    assert board._pending["r0/0"] == []


def test_every_sibling_is_a_trial() -> None:
    estimator = AcceptanceEstimator()
    board, sample = Scoreboard(estimator), FakeSample([1])
    board.add(sample, Draft((7, 8, 5, 6), (-1, 0, -1, 2), "p", buckets=(0, 1, 2, 3)))
    sample.tokens += [5, 9]
    board.commit(sample)
    trials = {bucket: (rate.hits, rate.trials) for (_, bucket), rate in estimator._buckets.items()}
    assert trials == {0: (0.0, 1.0), 2: (1.0, 1.0), 3: (0.0, 1.0)}


def test_a_draft_that_is_rarely_verified_gets_the_same_estimate() -> None:
    """Censoring: the deeper positions of a draft that the window cuts off are still judged, without bias."""
    estimator, rng = AcceptanceEstimator(), random.Random(1)
    board, sample = Scoreboard(estimator), FakeSample([0])
    for _ in range(3000):
        board.add(sample, chain((1, 1, 1), "p"))
        sample.tokens.append(1 if rng.random() < 0.6 else 0)  # one token a step: nothing was verified
        board.commit(sample)
    for position in range(3):
        assert estimator.rate("p", 0, position) == pytest.approx(0.6, abs=0.1)


def test_an_ended_sample_leaves_nothing_behind() -> None:
    board, sample = Scoreboard(AcceptanceEstimator()), FakeSample([1])
    board.add(sample, chain((7,), "p"))
    board.tilt(sample, "p")
    board.drop(sample)
    assert not board._pending
    assert not board._tilts
