import random

import pytest

from prolepsis.spec.acceptance import AcceptanceEstimator, Scoreboard
from prolepsis.spec.draft import Draft, chain
from tests.spec.sequences import FakeSequence


def _add(board: Scoreboard, estimator: AcceptanceEstimator, sequence: FakeSequence, draft: Draft) -> None:
    board.add(sequence, draft, estimator.rates(draft))


def test_a_position_is_a_trial_only_if_all_before_it_were_committed() -> None:
    estimator = AcceptanceEstimator(prior=0.5)
    board, sequence = Scoreboard(estimator), FakeSequence([1, 2])
    _add(board, estimator, sequence, chain((7, 8, 9), "p"))
    sequence.tokens += [7, 5, 9]
    board.commit(sequence)
    assert estimator.rate("p", 0, 0) > 0.5
    assert estimator.rate("p", 0, 1) < estimator.rate("p", 0, 0)
    assert estimator.trials("p", 0, 0) == (1.0, 1.0)
    assert estimator.trials("p", 0, 1) == (0.0, 1.0)
    assert estimator.trials("p", 0, 2) == (0.0, 0.0)  # 9 followed, but after another token


def test_tokens_that_come_one_by_one_are_judged_when_they_come() -> None:
    estimator = AcceptanceEstimator()
    board, sequence = Scoreboard(estimator), FakeSequence([1])
    _add(board, estimator, sequence, chain((7, 8), "p"))
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
    _add(board, estimator, sequence, Draft((7, 8, 5, 6), (-1, 0, -1, 2), "p", buckets=(0, 1, 2, 3)))
    sequence.tokens += [5, 9]
    board.commit(sequence)
    trials = [estimator.trials("p", bucket, depth) for bucket, depth in ((0, 0), (1, 1), (2, 0), (3, 1))]
    assert trials == [(0.0, 1.0), (0.0, 0.0), (1.0, 1.0), (0.0, 1.0)]


def test_a_draft_that_is_rarely_verified_gets_the_same_estimate() -> None:
    """Censoring: the deeper positions of a draft that the window cuts off are still judged, without bias."""
    estimator, rng = AcceptanceEstimator(), random.Random(1)
    board, sequence = Scoreboard(estimator), FakeSequence([0])
    for _ in range(3000):
        _add(board, estimator, sequence, chain((1, 1, 1), "p"))
        sequence.tokens.append(1 if rng.random() < 0.6 else 0)  # one token a step: nothing was verified
        board.commit(sequence)
    for position in range(3):
        assert estimator.rate("p", 0, position) == pytest.approx(0.6, abs=0.1)


def test_an_ended_sequence_leaves_nothing_behind() -> None:
    estimator = AcceptanceEstimator()
    board, sequence = Scoreboard(estimator), FakeSequence([1])
    _add(board, estimator, sequence, chain((7,), "p"))
    board.tilt(sequence, "p")
    board.drop(sequence)
    assert not board._pending
    assert not board._tilts
