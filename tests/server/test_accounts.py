import pytest

from prolepsis.core.stats import ProposerCounts, RequestStats
from prolepsis.server.accounts import acceptance_histogram, metrics, usage


def test_rejected_prediction_tokens_are_billed_only_by_choice() -> None:
    stats = RequestStats(num_prompt_tokens=3, num_output_tokens=10, prediction_accepted=4, prediction_rejected=5)
    plain = usage(stats, has_prediction=False, count_rejected=True)
    assert (plain["completion_tokens"], plain["total_tokens"]) == (10, 13)
    assert "completion_tokens_details" not in plain
    assert usage(stats, has_prediction=True, count_rejected=True)["completion_tokens"] == 15
    assert usage(stats, has_prediction=True, count_rejected=False)["completion_tokens"] == 10


@pytest.mark.parametrize("drafts", [[], [(3, 3)], [(1, 0), (3, 2), (3, 2), (2, 2), (4, 0)]])
def test_the_histogram_counts_each_draft_once(drafts: list[tuple[int, int]]) -> None:
    a, b = ProposerCounts(), ProposerCounts()
    for i, (drafted, accepted) in enumerate(drafts):
        (a, b)[i % 2].record(drafted, accepted)
    deepest = max((drafted for drafted, _ in drafts), default=0)
    expected = [sum(accepted == j for _, accepted in drafts) for j in range(deepest + 1)]
    assert acceptance_histogram(RequestStats(proposers={"a": a, "b": b})) == expected


def test_metrics_of_a_request_without_tokens_divide_by_nothing() -> None:
    shown = metrics(RequestStats())
    assert shown["time_to_first_token_ms"] is None
    assert shown["tokens_per_second"] is None
