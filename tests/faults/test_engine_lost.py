"""A server whose engine ends builds another: readiness tells of it, liveness does not, and streams are unbroken."""

import asyncio
import json
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from prolepsis.core.engine_client import EngineClient
from prolepsis.engine.drafting.proposer import Proposer
from prolepsis.engine.drafting.proposers.prompt_lookup import PromptLookupProposer
from prolepsis.engine.drafting.proposers.suffix import SuffixProposer
from prolepsis.remote.engines import Engines
from prolepsis.remote.members import FailoverSettings, Member
from tests.fakes import build_as
from tests.load.server import CountingClient, CountingEngine, TableServer, serving
from tests.waiting import wait_for

BODY = {"model": "table", "prompt": "banana", "max_tokens": 200, "ignore_eos": True, "stream": True, "seed": 5}
USAGE = {"stream_options": {"include_usage": True}}
KINDS: Sequence[dict[str, Any]] = (
    {"temperature": 0},
    {"temperature": 1.0},
    {"n": 2, "max_tokens": 80},
    {"temperature": 0.9, "top_p": 0.8, "logprobs": 2},
)


class RestartingServer(TableServer):
    """Its engines are built when `may_start` is set."""

    def served(self) -> EngineClient:
        self.may_start = threading.Event()
        self.engines = [self.engine]
        members = [Member(self.client, self._start)]
        return Engines(members, self.metrics.registry, FailoverSettings(backoff_s=0.0))

    async def _start(self) -> EngineClient:
        await asyncio.get_running_loop().run_in_executor(None, self.may_start.wait)
        proposers: list[Proposer] = [SuffixProposer(1 << 20), PromptLookupProposer()]
        self.setup.proposers = proposers
        self.engines.append(build_as(CountingEngine, self.setup))
        return CountingClient(self.engines[-1])


def answer(url: str, body: dict[str, Any], on_first: threading.Event | None = None) -> tuple[dict[int, str], Any]:
    """Return the text of each sample, and the usage."""
    texts: dict[int, str] = {}
    usage = None
    with httpx2.stream("POST", f"{url}/v1/completions", json=BODY | body | USAGE, timeout=60) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                chunk = json.loads(line.removeprefix("data: "))
                assert "error" not in chunk, chunk
                usage = chunk.get("usage") or usage
                for choice in chunk["choices"]:
                    texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
                if on_first is not None:
                    on_first.set()
    return texts, {name: usage[name] for name in ("prompt_tokens", "completion_tokens")} if usage else None


@pytest.fixture(scope="module")
def expected() -> list[tuple[dict[int, str], Any]]:
    with serving(TableServer()) as server:
        return [answer(server.url, body) for body in KINDS]


def test_streams_go_on_and_readiness_tells(expected: list[tuple[dict[int, str], Any]]) -> None:
    server = RestartingServer()
    with serving(server), ThreadPoolExecutor(16) as pool:
        began = [threading.Event() for _ in KINDS]
        streams = [pool.submit(answer, server.url, body, first) for body, first in zip(KINDS, began, strict=True)]
        for first in began:
            assert first.wait(60)
        server.engine.dies = True
        wait_for(lambda: httpx2.get(f"{server.url}/health/ready").status_code == 503)
        assert "starting the engine again" in httpx2.get(f"{server.url}/health/ready").json()["detail"]
        assert httpx2.get(f"{server.url}/health/live").status_code == 200
        late = pool.submit(answer, server.url, KINDS[0])
        server.may_start.set()
        assert [stream.result() for stream in streams] == expected
        assert late.result() == expected[0]
        assert httpx2.get(f"{server.url}/health/ready").status_code == 200
    assert len(server.engines) == 2
    assert server.sample("engine_restarts_total", result="started") == 1
    assert server.sample("requests_total", route="/v1/completions", tier="standard", outcome="finished") == 5
    continued = server.sample("continuations_total", reason="engine_dead", result="exact")
    assert continued == server.sample("continuation_pause_seconds_count")
    assert continued >= 1


def test_engines_that_end_again_and_again(expected: list[tuple[dict[int, str], Any]]) -> None:
    server = RestartingServer()
    server.may_start.set()
    with serving(server), ThreadPoolExecutor(16) as pool:
        began = threading.Event()
        streams = [pool.submit(answer, server.url, body, began) for body in KINDS]
        assert began.wait(60)
        for number in range(3):
            wait_for(lambda: len(server.engines) > number or all(stream.done() for stream in streams))  # noqa: B023
            server.engines[-1].dies = True
        assert [stream.result() for stream in streams] == expected
