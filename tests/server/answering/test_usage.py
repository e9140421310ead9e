import pytest

from prolepsis.core.continuation import Continued
from prolepsis.core.stats import ProposerCounts, RequestStats
from prolepsis.server.answering.usage import acceptance_histogram, metrics, summed, usage
from prolepsis.server.openai.replies import MetricsReply


def test_rejected_prediction_tokens_are_billed_only_by_choice() -> None:
    stats = RequestStats(num_prompt_tokens=3, num_output_tokens=10, prediction_accepted=4, prediction_rejected=5)
    plain = usage(stats)
    assert (plain["completion_tokens"], plain["total_tokens"]) == (10, 13)
    assert "completion_tokens_details" not in plain
    assert usage(stats, has_prediction=True)["completion_tokens"] == 15
    assert usage(stats, has_prediction=True, count_rejected=False)["completion_tokens"] == 10


@pytest.mark.parametrize("drafts", [[], [(3, 3)], [(1, 0), (3, 2), (3, 2), (2, 2), (4, 0)]])
def test_the_histogram_counts_each_draft_once(drafts: list[tuple[int, int]]) -> None:
    a, b = ProposerCounts(), ProposerCounts()
    for i, (drafted, accepted) in enumerate(drafts):
        (a, b)[i % 2].record(drafted, accepted)
    deepest = max((drafted for drafted, _ in drafts), default=0)
    expected = [sum(accepted == j for _, accepted in drafts) for j in range(deepest + 1)]
    assert acceptance_histogram({"a": a, "b": b}) == expected


def test_metrics_of_a_request_without_tokens_divide_by_nothing() -> None:
    shown = metrics(RequestStats())
    assert shown["time_to_first_token_ms"] is None
    assert shown["tokens_per_second"] is None


def test_reasoning_tokens_are_shown_where_there_is_reasoning() -> None:
    shown = usage(RequestStats(num_output_tokens=9), reasoning_tokens=4)
    assert shown["completion_tokens_details"] == {"reasoning_tokens": 4}
    assert shown["completion_tokens"] == 9


def test_counts_of_several_prompts_add_up() -> None:
    parts = [RequestStats(num_prompt_tokens=3, num_output_tokens=5, num_cached_tokens=1, num_steps=i) for i in (1, 2)]
    total = summed(parts)
    assert (total.num_prompt_tokens, total.num_output_tokens, total.num_cached_tokens, total.num_steps) == (6, 10, 2, 3)
    assert summed(parts[:1]) is parts[0]


def test_losses_of_engines_are_shown_where_there_were_any() -> None:
    assert "continued" not in metrics(RequestStats())
    lost = RequestStats(continued=[Continued(loss="shutdown", num_tokens=4, pause_s=0.25)])
    shown = metrics(summed([RequestStats(), lost]))
    assert shown["continued"] == [{"loss": "shutdown", "pause_ms": 250.0}]
    assert shown["not_exact"] == []


def test_tokens_by_part_of_the_answer_add_up_and_are_shown_where_a_rule_has_terms_by_part() -> None:
    assert "inside" not in metrics(RequestStats())
    parts = [RequestStats(inside={"call": {"emitted": 3, "drafted": 2}}), RequestStats(inside={"text": {"emitted": 1}})]
    shown = metrics(summed([*parts, parts[0]]))
    assert shown["inside"] == {"call": {"emitted": 6, "drafted": 4}, "text": {"emitted": 1}}
    assert MetricsReply.model_validate(shown).inside == shown["inside"]
