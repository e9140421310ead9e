"""What a request needs at every token is made once, for all of its samples."""

import pytest

from prolepsis.core.plan import SpecPlan
from prolepsis.core.requests import GenerateRequest, SamplingParams
from prolepsis.core.stats import ProposerCounts
from prolepsis.engine.accounting import close_stats
from prolepsis.engine.request import Request, open_request
from tests.fakes import Letters


def test_samples_share_the_arrays_of_their_bias() -> None:
    params = SamplingParams(logit_bias=((3, 1.5), (1, -2.0)))
    sequences = open_request(GenerateRequest("r", (1,), params, n=3), 0.0, 0, (), Letters()).sequences
    bias = sequences[0].bias
    assert bias is not None
    assert (bias.ids.tolist(), bias.values.tolist()) == ([3, 1], [1.5, -2.0])
    assert all(sequence.bias is bias for sequence in sequences)


def test_stop_strings_are_found_by_each_sample_for_itself() -> None:
    request = GenerateRequest("r", (1,), SamplingParams(stop=("ab",)), n=2)
    first, second = (sequence.text for sequence in open_request(request, 0.0, 0, (), Letters()).sequences)
    assert first is not None
    assert second is not None
    first.push([0])
    second.push([1])
    first.push([1])
    assert (first.matched, second.matched) == ("ab", None)


@pytest.mark.parametrize(
    ("prompt", "prediction", "rejected"),
    [
        ((3, 4, 5, 9, 9, 9, 9, 9, 9, 6), (9, 9, 9, 9), 0),  # it stands in the prompt
        ((3, 4, 5, 9, 9, 9, 9, 9, 9, 6), (8, 9, 9, 9, 9, 9, 7), 0),  # but for a token at its ends
        ((3, 4, 5), (9, 9, 9, 9), 4),
        ((3, 4, 5, 9, 9, 8, 9, 9), (9, 9, 9, 9), 4),
    ],
)
def test_a_prediction_that_brought_nothing_is_not_billed_where_it_stands_in_the_prompt(
    prompt: tuple[int, ...], prediction: tuple[int, ...], rejected: int
) -> None:
    source = GenerateRequest("a", prompt, SamplingParams(), prediction_token_ids=prediction)

    def opened() -> Request:
        return open_request(source, 0.0, 0, (), Letters())

    closed, partly = opened(), opened()
    closed.stats.proposers["prediction"] = ProposerCounts(num_drafts=1, num_draft_tokens=4)
    close_stats(closed, SpecPlan(), 1.0)
    assert (closed.stats.prediction_accepted, closed.stats.prediction_rejected) == (0, rejected)
    partly.stats.proposers["prediction"] = ProposerCounts(num_drafts=1, num_draft_tokens=4, num_accepted=1)
    close_stats(partly, SpecPlan(), 1.0)
    assert (partly.stats.prediction_accepted, partly.stats.prediction_rejected) == (1, 3)
