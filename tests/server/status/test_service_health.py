"""Readiness by what requests get."""

from collections.abc import Callable
from typing import get_args

import httpx2
import pytest

from prolepsis.core.ended import End
from prolepsis.core.errors import (
    ClientDeadlineExceeded,
    DeadlineExceeded,
    EngineError,
    GrammarFailed,
    ProlepsisError,
    StepFailed,
)
from prolepsis.core.telemetry.declare import MetricsRegistry
from prolepsis.server.status.service_health import LEAST_REQUESTS, WINDOW_S, DeepCheck, FailedShare, ServiceHealth
from tests.clock import Clock
from tests.ops.tracing.ended import prompt_ended, request_ended
from tests.server.fakes import FakeEngine

Connect = Callable[[FakeEngine], httpx2.AsyncClient]
BODY = {"model": "tiny", "prompt": "x", "max_tokens": 4}


def _share(*ends: tuple[str, str]) -> FailedShare:
    failed = FailedShare(Clock())
    for tenant, error in ends:
        failed.add(tenant, error)
    return failed


def test_most_requests_have_to_fail_and_some_have_to_come() -> None:
    assert not _share(*[("", "engine_error")] * (LEAST_REQUESTS - 1)).detail
    assert not _share(*[("", ""), ("", "engine_error")] * LEAST_REQUESTS).detail
    failed = _share(*[("", "")] * 3, *[("", "engine_error")] * 5)
    assert failed.detail == "5 of the last 8 requests failed, the last of them with engine_error"


def test_one_tenant_whose_requests_fail_does_not_stop_the_others() -> None:
    assert not _share(*[("a", "engine_error")] * 50, ("b", "")).detail
    assert _share(*[("a", "engine_error")] * 50, ("b", "engine_error")).detail


def test_the_last_requests_show_that_it_is_over() -> None:
    failed = _share(*[("", "engine_error")] * 40)
    for _ in range(LEAST_REQUESTS // 2):
        assert failed.detail
        failed.add("", "")
    assert not failed.detail


def test_requests_of_more_than_a_minute_ago_tell_nothing() -> None:
    clock = Clock()
    failed = FailedShare(clock)
    for _ in range(LEAST_REQUESTS - 1):
        failed.add("", "engine_error")
    clock.now += WINDOW_S + 1.0
    failed.add("", "engine_error")
    assert not failed.detail


async def test_a_server_whose_requests_fail_is_not_ready_until_they_succeed(client: Connect) -> None:
    engine = FakeEngine(error=StepFailed("a step failed: ZeroDivisionError"))
    http = client(engine)
    for _ in range(LEAST_REQUESTS):
        assert (await http.post("/v1/completions", json=BODY)).status_code == 500
    ready = await http.get("/health/ready")
    assert ready.status_code == 503
    assert ready.json()["detail"] == "8 of the last 8 requests failed, the last of them with engine_error"
    assert (await http.get("/health/deep")).status_code == 503
    assert "prolepsis_requests_failing 1.0" in (await http.get("/metrics")).text
    engine.error = None
    for _ in range(LEAST_REQUESTS):
        assert (await http.post("/v1/completions", json=BODY)).status_code == 200
    assert (await http.get("/health/ready")).status_code == 200
    assert "prolepsis_requests_failing 0.0" in (await http.get("/metrics")).text


@pytest.mark.parametrize("error", [ClientDeadlineExceeded("late"), GrammarFailed("no way on")])
async def test_errors_of_the_request_itself_leave_the_server_ready(client: Connect, error: ProlepsisError) -> None:
    http = client(FakeEngine(error=error))
    for _ in range(2 * LEAST_REQUESTS):
        await http.post("/v1/completions", json=BODY)
    assert (await http.get("/health/ready")).status_code == 200


async def test_deadlines_of_the_server_are_failures(client: Connect) -> None:
    http = client(FakeEngine(error=DeadlineExceeded("late")))
    for _ in range(LEAST_REQUESTS):
        assert (await http.post("/v1/completions", json=BODY)).status_code == 504
    assert (await http.get("/health/ready")).status_code == 503


@pytest.mark.parametrize("end", get_args(End))
def test_readiness_counts_what_availability_counts(end: End) -> None:
    health = ServiceHealth(FakeEngine(), MetricsRegistry(), Clock())
    for _ in range(LEAST_REQUESTS):
        health.on_request_end(request_ended(prompt_ended(end=end), end=end))
    assert bool(health.detail) == (end in ("failed", "aborted"))


async def test_where_no_request_comes_two_deep_checks_in_a_row_show_that_the_engine_answers() -> None:
    engine, clock = FakeEngine(error=EngineError("gone")), Clock()
    health = ServiceHealth(engine, MetricsRegistry(), clock)
    health.deep_check = DeepCheck(engine, cached_s=0.0)
    for _ in range(LEAST_REQUESTS):
        health.on_request_end(request_ended(prompt_ended(end="failed"), end="failed"))
    await health.tick()
    assert health.detail
    engine.error = None
    await health.tick()
    assert health.detail
    await health.tick()
    assert not health.detail
