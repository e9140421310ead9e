"""What a request needs at every token is made once, for all of its samples."""

from prolepsis.core.requests import GenerateRequest, SamplingParams
from prolepsis.engine.request import open_request
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
