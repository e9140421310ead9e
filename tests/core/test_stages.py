"""The stages of a request add up to its wall time, whatever the figures are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prolepsis.core.ended import Answer, PromptEnded
from prolepsis.core.requests import GenerateRequest, SamplingParams
from prolepsis.core.stages import STAGES, StageSeconds, engine_stages, stages_of
from prolepsis.core.stats import DeviceSeconds, RequestStats

SECONDS = st.floats(0.0, 100.0)


def prompt_of(answer: Answer, stats: RequestStats, **times: float | None) -> PromptEnded:
    return PromptEnded(
        request=GenerateRequest("r", (1,), SamplingParams()),
        end="finished",
        error=None,
        stats=stats,
        num_shown_tokens=None,
        answer=answer,
        tokens=(),
        finish_reasons=(),
        delivery={},
        **times,  # type: ignore[arg-type]
    )


@given(
    answer=st.sampled_from(["complete", "cut", "unreported", "cached"]),
    spans=st.tuples(*[SECONDS] * 3),
    engine=st.tuples(*[SECONDS] * 8),
    first=st.none() | SECONDS,
)
def test_stages_add_up_to_the_time_from_arrival_to_the_end(
    answer: Answer, spans: tuple[float, ...], engine: tuple[float, ...], first: float | None
) -> None:
    receive, waited, rest = spans
    arrived = 1000.0
    began = arrived + receive + waited
    total, queue, stream, *device = engine
    stats = RequestStats(total_s=total, queue_s=queue, device=DeviceSeconds(*device))
    first_at = None if first is None else began + first
    prompt = prompt_of(answer, stats, waited_s=waited, began_at=began, stream_s=stream, first_token_at=first_at)
    stages = stages_of(prompt, arrived, began + rest)
    assert stages.total == pytest.approx(receive + waited + rest, abs=1e-6)
    assert min(stages.by_stage().values()) >= 0.0
    assert tuple(stages.by_stage()) == STAGES


def test_each_wait_has_its_stage() -> None:
    device = DeviceSeconds(prefill=1.0, plain=2.0, verify=0.5, propose=0.25, host=0.25)
    stats = RequestStats(total_s=10.0, queue_s=2.0, device=device)
    prompt = prompt_of("complete", stats, waited_s=3.0, began_at=104.0, stream_s=1.5)
    assert stages_of(prompt, 100.0, 116.0) == StageSeconds(
        receive=1.0, queue=5.0, prefill=1.0, decode=3.0, others=4.0, client=1.5, server=0.5
    )


def test_a_step_that_ends_after_its_request_adds_nothing() -> None:
    stages = engine_stages(RequestStats(total_s=2.0, device=DeviceSeconds(prefill=1.0, plain=3.0)))
    assert (stages.prefill, stages.decode, stages.others) == (0.5, 1.5, 0.0)
