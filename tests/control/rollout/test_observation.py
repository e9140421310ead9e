"""What finished requests show to the rollout they are part of: values, failures, and what does not count."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prolepsis.control.rollout.observation import observed, values_of
from prolepsis.control.rollout.runtime import Rollouts, RolloutView
from prolepsis.core.ended import End, PromptEnded, RequestAbout, RequestEnded
from prolepsis.core.errors import EngineError, InvalidParameter
from prolepsis.core.requests import GenerateRequest, GrammarSpec, SamplingParams
from prolepsis.core.stats import DeviceSeconds, EffectiveMode, ProposerCounts, RequestStats
from tests.fake_client import INFO
from tests.server.fakes import FakeEngine
from tests.server.openai.test_tools import CALL, TOOL, USER
from tests.world.site import NO_START, Site

POLICY = """
default:
  mode: on
  rollout: {stages: [80]}
  guardrails: [{name: errors, metric: error_rate, limit: 0.1}, {name: taken, metric: acceptance_rate, limit: 0.1}]
"""


def shows(*stats: RequestStats, n: int = 1) -> dict[str, float]:
    """Return the values of a request with these prompts, of so many samples each."""
    return values_of([prompt for one in stats for prompt in ended(stats=one, n=n).prompts])


def test_values_of_one_request_with_two_prompts() -> None:
    short = RequestStats(num_output_tokens=1, first_token_s=0.1, total_s=0.1)
    long = RequestStats(
        num_output_tokens=11, first_token_s=0.2, total_s=0.7, proposers={"suffix": ProposerCounts(2, 8, 6)}
    )
    assert shows(short, long) == pytest.approx(
        {"error": 0.0, "latency_ms": 700.0, "acceptance": 0.75, "first_token_ms": 200.0, "latency_per_token_ms": 50.0}
    )
    assert shows(RequestStats(total_s=1.0, shadow={"suffix": ProposerCounts(1, 4, 1)}))["acceptance"] == 0.25
    assert set(shows(RequestStats())) == {"error", "latency_ms"}


def test_samples_that_are_decoded_at_the_same_time_make_no_token_faster() -> None:
    four = RequestStats(num_output_tokens=44, first_token_s=0.2, total_s=0.7)
    assert shows(four, n=4)["latency_per_token_ms"] == pytest.approx(50.0)
    assert "latency_per_token_ms" not in shows(RequestStats(num_output_tokens=4, first_token_s=0.2, total_s=0.2), n=4)


def test_a_token_costs_all_that_its_request_took_of_the_device() -> None:
    parts = [
        RequestStats(num_output_tokens=3, device=DeviceSeconds(prefill=0.02, plain=0.05, predicted_plain=9.0)),
        RequestStats(num_output_tokens=2, device=DeviceSeconds(verify=0.01, propose=0.015, host=0.005)),
    ]
    assert shows(*parts)["device_ms_per_token"] == pytest.approx(20.0)


def test_every_request_shows_how_far_a_step_got_unless_something_else_kept_it_plain() -> None:
    drafted = RequestStats(num_output_tokens=24, num_steps=12, proposers={"suffix": ProposerCounts(8, 20, 12)})
    assert shows(drafted)["acceptance_length"] == 2.0
    spared = RequestStats(num_output_tokens=24, num_steps=24, mode=EffectiveMode("off", "too_costly", 1))
    assert shows(drafted, spared)["acceptance_length"] == pytest.approx(48 / 36)
    assert "acceptance" not in shows(spared)
    killed = RequestStats(num_output_tokens=24, num_steps=20, mode=EffectiveMode("on", "killed", 1))
    assert "acceptance_length" not in shows(killed)


STATS = RequestStats(num_output_tokens=3)
GRAMMAR = GrammarSpec("regex", "a*")


def ended(
    *reasons: str,
    grammar: GrammarSpec | None = GRAMMAR,
    end: End = "finished",
    is_cached: bool = False,
    stats: RequestStats = STATS,
    num_shown: int | None = None,
    n: int = 1,
) -> RequestEnded:
    prompt = PromptEnded(
        request=GenerateRequest("r", (1,), SamplingParams(), n=n, grammar=grammar),
        end=end,
        error=None,
        stats=stats,
        num_shown_tokens=stats.num_output_tokens if num_shown is None else num_shown,
        answer="cached" if is_cached else "complete" if num_shown is None else "cut",
        tokens=(),
        finish_reasons=reasons,
        delivery={},
    )
    about = RequestAbout(answer_id="a", tenant="", key_id="", tier="standard", route="/", model="tiny")
    return RequestEnded(about=about, end=end, error=None, prompts=(prompt,))


def validity(shown: RequestEnded) -> float | None:
    values = observed(shown)
    assert values is not None
    return values.get("validity")


@pytest.mark.parametrize(("reason", "valid"), [("stop", 1.0), ("length", 0.0), ("content_filter", None)])
def test_a_form_that_was_cut_short_is_not_valid_and_one_that_a_policy_ended_says_nothing(
    reason: str, valid: float | None
) -> None:
    assert validity(ended(reason)) == valid
    assert validity(ended(reason, grammar=None)) is None


def test_tokens_behind_the_stop_of_an_output_policy_do_not_count() -> None:
    mode = EffectiveMode("on", "speculating", 1)
    stats = RequestStats(num_output_tokens=12, num_steps=6, mode=mode)
    values = observed(ended("content_filter", stats=stats, num_shown=6))
    assert values is not None
    assert values["acceptance_length"] == pytest.approx(1.0)


def test_a_stored_answer_shows_nothing() -> None:
    assert observed(ended("stop", is_cached=True)) is None


@pytest.mark.parametrize(
    ("end", "values"),
    [
        ("failed", {"error": 1.0}),
        ("expired", {"error": 1.0}),
        ("aborted", {}),
        ("left", {}),
        ("refused", None),
        ("broken", None),
    ],
)
def test_unfinished_requests_count_as_errors_or_not_at_all(end: End, values: dict[str, float] | None) -> None:
    assert observed(ended(end=end)) == values


async def seen(folder: Path, engine: FakeEngine, **body: Any) -> RolloutView:
    """Ask 60 times and return what the rollout saw of it."""
    site = Site(engine, folder=folder, policy=POLICY)
    rollouts = site.feature(Rollouts)
    [view] = await rollouts.views()
    for what in ("start", "promote"):
        await rollouts.command(view.id, what, "", force=what == "promote")  # out of shadow
    async with site.http as http:
        for _ in range(60):
            await http.post("/v1/completions", json={"model": "tiny", "prompt": "Hi", **body})
    return await rollouts.view(view.id)


def means(view: RolloutView) -> dict[str, tuple[int, float]]:
    assert view.judgement is not None
    return {finding.name: (finding.num_canary, finding.estimate) for finding in view.judgement.guardrails}


async def test_answers_and_failures_count_for_their_arm(tmp_path: Path) -> None:
    good = await seen(tmp_path, FakeEngine())
    assert good.num_canary + good.num_control == 60
    assert good.num_canary > good.num_control > 0
    assert means(good) == {"errors": (good.num_canary, 0.0), "taken": (good.num_canary, 0.5)}
    bad = await seen(tmp_path, FakeEngine(fail_after=1, error=EngineError("gone")))
    assert means(bad) == {"errors": (bad.num_canary, 1.0), "taken": (0, 0.0)}


@pytest.mark.parametrize(
    ("engine", "body"),
    [
        (FakeEngine(), {"speculation": {"mode": "off"}}),
        (FakeEngine(), {"speculation": {"max_depth": 2}}),
        (FakeEngine(error=InvalidParameter("no", param="prompt")), {}),
    ],
)
async def test_requests_with_a_choice_of_their_own_or_refused_count_for_no_arm(
    tmp_path: Path, engine: FakeEngine, body: Any
) -> None:
    view = await seen(tmp_path, engine, **body)
    assert (view.num_canary, view.num_control) == (0, 0)


CALLS_POLICY = """
default:
  mode: on
  rollout: {stages: 50, holdout: 50, gate: automatic}
  guardrails: [{name: calls, metric: tool_call_success, limit: 0.9}]
"""
WRONG = CALL.replace('"name"', '"called"')
BAD_JSON = CALL.replace('"Köln"}', '"Köln",}')


async def counted(folder: Path, text: str, **body: Any) -> tuple[bool, float]:
    """Ask with a tool; return whether requests of the canary counted, and the share that succeeded."""
    engine = FakeEngine(info=replace(INFO, max_model_len=4096), text=text, step=5)
    site = Site(engine, NO_START, folder=folder, policy=CALLS_POLICY)
    rollouts = site.feature(Rollouts)
    [view] = await rollouts.views()
    await rollouts.command(view.id, "start", "")
    asked = {"model": "tiny", "messages": USER, "tools": [TOOL], **body}
    async with site.http as http:
        for i in range(16):
            reply = await http.post("/v1/chat/completions", json=asked, headers={"x-request-id": f"r{i}"})
            assert reply.status_code == 200, reply.text
    judgement = (await rollouts.view(view.id)).judgement
    assert judgement is not None
    [calls] = judgement.guardrails
    return calls.num_canary > 0, calls.estimate


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("text", "body", "expected"),
    [
        (CALL, {}, (True, 1.0)),
        (f"Let me look.\n{CALL}\n{CALL}", {"n": 2}, (True, 1.0)),
        (f"{CALL}\n{CALL}", {"parallel_tool_calls": False}, (True, 1.0)),
        (WRONG, {}, (True, 0.0)),
        (BAD_JSON, {}, (True, 0.0)),
        (f"{CALL}\n{WRONG}", {}, (True, 0.0)),
        (CALL, {"max_tokens": 60}, (True, 0.0)),
        ("No need < of tools.", {}, (False, 0.0)),
        (CALL, {"tools": None}, (False, 0.0)),
    ],
)
async def test_answers_with_a_call_count_and_succeed_if_all_calls_are_whole(
    tmp_path: Path, stream: bool, text: str, body: Any, expected: tuple[bool, float]
) -> None:
    assert await counted(tmp_path, text, stream=stream, **body) == expected
