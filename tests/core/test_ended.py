"""What a request that has ended says of its draw and of the form of its answer."""

from dataclasses import replace

import pytest

from prolepsis.core.ended import Answer, Assignment, End, RequestAbout
from prolepsis.core.requests import GrammarSpec, LatencyTarget
from prolepsis.core.stats import RequestStats
from tests.ops.tracing.ended import prompt_ended, request_ended

DRAWN = Assignment("code@1", run=1, stage=2, arm="unassigned", mode="off", share=0.25)
ABOUT = replace(request_ended().about, assignment=DRAWN, is_evidence=True)


def test_a_request_that_chance_drew_alone_against_plain_decoding_has_its_share() -> None:
    assert ABOUT.canary_share == 0.25


@pytest.mark.parametrize(
    "about",
    [
        replace(ABOUT, assignment=None),
        replace(ABOUT, is_evidence=False),
        replace(ABOUT, num_prompts=2),
        *(
            replace(ABOUT, assignment=replace(DRAWN, **change))
            for change in ({"unit": "ab"}, {"is_against_plain": False}, {"share": 0.0}, {"share": 1.0})
        ),
    ],
)
def test_others_are_in_no_comparison(about: RequestAbout) -> None:
    assert about.canary_share is None


@pytest.mark.parametrize(
    ("reason", "kept"), [("stop", True), ("tool_calls", True), ("length", False), ("content_filter", None)]
)
def test_an_answer_that_was_cut_does_not_keep_its_form(reason: str, kept: bool | None) -> None:
    free = replace(prompt_ended(), finish_reasons=(reason,))
    bound = replace(free, request=replace(free.request, grammar=GrammarSpec("regex", "a")))
    assert (free.kept_form, bound.kept_form) == (None, kept)


@pytest.mark.parametrize(
    ("target", "end", "answer", "kept"),
    [
        (None, "finished", "complete", {}),
        (LatencyTarget(50.0, 500.0), "finished", "complete", {"per_token": True, "first_token": True}),
        (LatencyTarget(49.0, 499.0), "finished", "complete", {"per_token": False, "first_token": False}),
        (LatencyTarget(50.0), "finished", "complete", {"per_token": True}),
        (LatencyTarget(None, 0.0), "finished", "complete", {"first_token": False}),  # it waited for all of the time
        (LatencyTarget(50.0, 500.0), "failed", "cut", {"per_token": False, "first_token": False}),
        (LatencyTarget(50.0), "expired", "cut", {"per_token": False}),
        (LatencyTarget(50.0), "left", "cut", {}),
        (LatencyTarget(50.0), "refused", "cut", {}),
        (LatencyTarget(50.0), "finished", "unreported", {}),
    ],
)
def test_a_request_keeps_its_targets(
    target: LatencyTarget | None, end: End, answer: Answer, kept: dict[str, bool]
) -> None:
    prompt, took = prompt_ended(), RequestStats(num_output_tokens=11, first_token_s=0.5, total_s=1.0)
    ended = replace(prompt, request=replace(prompt.request, target=target), stats=took, end=end, answer=answer)
    assert ended.targets == kept
    assert ended.met_target == (all(kept.values()) if kept else None)


def test_a_wait_takes_from_the_time_to_the_first_token() -> None:
    assert LatencyTarget(5.0, 500.0).after(0.25) == LatencyTarget(5.0, 250.0)
    assert LatencyTarget(5.0, 500.0).after(1.0) == LatencyTarget(5.0, 0.0)
    assert LatencyTarget(5.0).after(1.0) == LatencyTarget(5.0)
