"""What operators say of sampling parameters that clients leave out, and whose the other values are."""

import pytest

from prolepsis.core.given_sampling import given_sampling
from prolepsis.core.requests import SamplingDefaults

MODELS = SamplingDefaults(temperature=0.7, top_p=0.8, top_k=20, repetition_penalty=1.05, source="catalogue")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("model", MODELS),
        ("openai", SamplingDefaults()),
        (
            "temperature=0.2",
            SamplingDefaults(0.2, 0.8, 20, repetition_penalty=1.05, source="operator, others catalogue"),
        ),
        ("model, top_k=5", SamplingDefaults(0.7, 0.8, 5, repetition_penalty=1.05, source="operator, others catalogue")),
        ("openai,top_k=5", SamplingDefaults(top_k=5, source="operator, others openai")),
        (
            "temperature=0,top_p=0.5,top_k=3,min_p=0.1,repetition_penalty=1",
            SamplingDefaults(0.0, 0.5, 3, 0.1, 1.0, source="operator"),
        ),
    ],
)
def test_values_over_those_of_the_model_or_of_openai(text: str, found: SamplingDefaults) -> None:
    assert given_sampling(text).over(MODELS) == found


def test_a_model_without_a_recommendation_has_openais() -> None:
    assert given_sampling("model").over(None) == SamplingDefaults()
    assert given_sampling("top_p=0.5").over(None) == SamplingDefaults(top_p=0.5, source="operator, others openai")


@pytest.mark.parametrize("text", ["", "modell", "temperature", "temp=1", "top_k=1,openai", "top_k=1,top_k=2", "=1"])
def test_what_means_nothing_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(
        ValueError, match=r"allowed: model, openai, or values such as temperature=0\.7.* of temperature,"
    ):
        given_sampling(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("temperature=3", r"temperature is 3\.0; allowed: 0 to 2"),
        ("top_p=high", "top_p=high; allowed for top_p: a number"),
        ("top_k=1.5", r"top_k=1\.5; allowed for top_k: a whole number"),
        ("top_k=2147483648", r"top_k is 2147483648; allowed: 0 \(off\) to 2147483647"),
        ("top_p=nan", "top_p is nan; allowed: 0 to 1"),
    ],
)
def test_a_value_out_of_range_is_refused_with_its_range(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        given_sampling(text)
