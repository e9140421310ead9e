import random

from prolepsis.spec.proposers.prediction import START_BUCKET, Prediction
from tests.spec.samples import FakeSample, accepted

TEXT = tuple(random.Random(0).sample(range(1000), 200))


def _draft(proposer: Prediction, sample: FakeSample, limit: int = 4) -> tuple[int, ...]:
    draft = proposer.propose([sample], [limit])[0]
    return draft.tokens if draft else ()


def test_right_from_the_start_of_the_output() -> None:
    sample = FakeSample([1, 2], num_prompt_tokens=2, prediction=TEXT)
    draft = Prediction().propose([sample], [4])[0]
    assert draft is not None
    assert (draft.tokens, draft.bucket) == (TEXT[:4], START_BUCKET)


def test_nothing_without_a_prediction_or_beyond_its_end() -> None:
    assert Prediction().propose([FakeSample([1, 2])], [4]) == [None]
    ended = FakeSample(list(TEXT), prediction=TEXT)
    assert Prediction().propose([ended], [4]) == [None]


def test_follows_what_is_committed_in_steps() -> None:
    proposer, sample = Prediction(), FakeSample([], prediction=TEXT)
    for num_tokens in (1, 4, 2, 7):
        sample.tokens += TEXT[len(sample.tokens) : len(sample.tokens) + num_tokens]
        assert _draft(proposer, sample) == TEXT[len(sample.tokens) : len(sample.tokens) + 4]


def test_goes_on_behind_a_substituted_token() -> None:
    proposer, sample = Prediction(), FakeSample([*TEXT[:10], 5000], prediction=TEXT)
    assert _draft(proposer, sample) == TEXT[11:15]


def test_finds_its_place_after_an_insertion_and_after_a_deletion() -> None:
    proposer, sample = Prediction(), FakeSample([*TEXT[:10], 5000, 5001, 5002, 5003], prediction=TEXT)
    _draft(proposer, sample)
    sample.tokens += TEXT[10:12]
    assert _draft(proposer, sample) == TEXT[12:16]
    sample.tokens += TEXT[60:62]  # the output leaves 48 tokens out
    assert _draft(proposer, sample) == TEXT[62:66]


def test_repeated_text_resumes_at_the_occurrence_ahead() -> None:
    text = (1, 2, 3, 10, 1, 2, 3, 20, 1, 2, 3, 30)
    sample = FakeSample([1, 2, 3, 10, 99, 1, 2, 3], prediction=text)
    assert _draft(Prediction(), sample, 1) == (20,)


def test_edits_cost_few_extra_passes() -> None:
    rng, output = random.Random(1), []
    for token in TEXT:
        kind = rng.random()
        output += [] if kind < 0.03 else [token, 7000 + token] if kind < 0.06 else [token]
    proposer, sample, passes = Prediction(), FakeSample([], prediction=TEXT), 0
    while len(sample.tokens) < len(output):
        draft = proposer.propose([sample], [8])[0]
        truth = output[len(sample.tokens) :]
        sample.tokens += truth[: 1 + (len(accepted(draft, truth)) if draft else 0)]
        passes += 1
    assert passes < len(output) / 3
