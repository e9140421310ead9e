"""The quality of an answer where users see it: header, metrics, series and log; the answer itself stays as it is."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NoReturn

import httpx2
import pytest
from structlog.testing import capture_logs

from prolepsis.control.health.quality import LEARN
from prolepsis.core.requests import GenerateRequest
from prolepsis.core.stats import AcceptedRun, ProposerCounts, RequestStats
from prolepsis.core.telemetry.logs import configure_logs
from prolepsis.server.answering.usage import summed
from prolepsis.server.openai.replies import MetricsReply
from tests.server.fakes import FakeEngine
from tests.world.site import Site

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 400}
TEXT, LOOP = "An answer that says one thing after another, and ends.", "Again. " * 40


class RunningEngine(FakeEngine):
    """An engine all of whose tokens are one run of accepted ones."""

    def _stats(self, request: GenerateRequest, num_tokens: int) -> RequestStats:
        drafts = {"suffix": ProposerCounts(40, 40, 30, [[40, 30]])}
        run = AcceptedRun(0, 0, num_tokens - 1)
        return replace(super()._stats(request, num_tokens), longest_run=run, proposers=drafts)


async def _ask(site: Site, text: str, **more: Any) -> httpx2.Response:
    site.engine.text = text
    return await site.post("/v1/chat/completions", **CHAT, **more)


async def _learned() -> Site:
    site = Site(RunningEngine())
    for _ in range(LEARN):
        assert (await _ask(site, TEXT)).headers["x-quality"] == "unjudged"
    return site


async def test_a_looping_answer_is_marked_everywhere_and_is_the_same() -> None:
    site = await _learned()
    assert (await _ask(site, TEXT)).headers["x-quality"] == "ordinary"
    configure_logs("warning")
    with capture_logs() as logs:
        reply = await _ask(site, LOOP, speculation={"metrics": True})
    assert reply.headers["x-quality"] == "looping"
    body = reply.json()
    assert MetricsReply.model_validate(body["metrics"]).quality == "looping"
    [choice] = body["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (LOOP, "stop")
    [alarm] = [line for line in logs if line["event"] == "quality_alarm"]
    assert (alarm["quality"], alarm["answer_id"], alarm["log_level"]) == ("looping", body["id"], "warning")
    assert site.sample("quality_alarms_total", kind="looping", tier="standard") == 1.0


async def test_a_stream_has_it_in_its_metrics() -> None:
    site = await _learned()
    reply = await _ask(site, LOOP, stream=True, speculation={"metrics": True})
    assert "x-quality" not in reply.headers
    *_, last, done, _ = reply.text.split("\n\n")
    assert done == "data: [DONE]"
    assert json.loads(last.removeprefix("data: "))["metrics"]["quality"] == "looping"


class BrokenStats(RequestStats):
    """Figures that no judge can read."""

    @property
    def first_tokens(self) -> NoReturn:
        raise RuntimeError("a fault of our own")


class BrokenEngine(FakeEngine):
    def _stats(self, request: GenerateRequest, num_tokens: int) -> RequestStats:
        return BrokenStats(num_output_tokens=num_tokens)


async def test_a_judge_that_fails_fails_no_answer() -> None:
    site = Site(BrokenEngine())
    with capture_logs() as logs:
        reply = await _ask(site, TEXT)
    assert reply.headers["x-quality"] == "unjudged"
    assert reply.json()["choices"][0]["message"]["content"] == TEXT
    assert "judge_failed" in {line["event"] for line in logs}


@pytest.mark.parametrize(
    ("parts", "whole"),
    [
        (("ordinary", "unjudged"), "ordinary"),
        (("looping", "ordinary"), "looping"),
        (("copied", "garbled", "ordinary"), "garbled"),
    ],
)
def test_of_several_prompts_the_worst_is_shown(parts: Sequence[Any], whole: str) -> None:
    assert summed([RequestStats(quality=part) for part in parts]).quality == whole
