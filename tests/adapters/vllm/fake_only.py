"""Tests of `tests/server/openai` that can pass over the fake engine only."""

from collections.abc import Mapping

_FIGURES = "compares with figures that the fake engine makes up"
_GRAMMAR = "the fake engine says what the grammar of the request does not allow"
FAKE_ONLY: Mapping[str, str] = {
    "test_completions.py::test_top_logprobs_of_completions_always_hold_the_emitted_token": _FIGURES,
    "test_completions.py::test_the_likeliest_of_top_tokens_with_equal_texts_is_shown": _FIGURES,
    "test_completions.py::test_tokens_of_equal_texts_can_be_told_apart_by_id": _FIGURES,
    "test_completions.py::test_whole_text_and_usage": _FIGURES,
    "test_completions.py::test_prediction_is_counted_only_where_it_was_given": _FIGURES,
    "test_completions.py::test_metrics_on_request": _FIGURES,
    "test_completions.py::test_stop_strings_never_leak_and_end_an_engine_that_goes_on": "vLLM's engine does not go on",
    "test_extensions.py::test_shadow_is_asked_of_the_engine_and_its_figures_are_apart": _FIGURES,
    "test_extensions.py::test_metrics_of_several_samples_and_prompts_are_sums": _FIGURES,
    "test_responses.py::test_items_of_an_answer_with_thought_text_and_calls": _FIGURES,
    "test_tools.py::test_no_second_call_is_sent_if_one_is_allowed": _GRAMMAR,
}
"""With the reason: over vLLM they must fail."""
