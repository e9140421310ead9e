"""Draft heads over HTTP: which are there, another one in place of the one in use, and what it brings."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from prolepsis.control.drafts.heads import DraftHeads, HeadSwapBody
from prolepsis.core.audit_event import AuditEvent
from prolepsis.core.config import (
    CANDIDATE_HEAD,
    DRAFT_HEAD,
    HEAD_PROPOSERS,
    NAMED_HEADS,
    HeadProposerName,
    ServerConfig,
)
from prolepsis.core.engine_client import InstalledHead
from prolepsis.core.errors import ConfigError
from prolepsis.core.events import Event, Finished
from prolepsis.core.requests import GenerateRequest
from prolepsis.core.stats import ProposerCounts, RequestStats
from prolepsis.engine.models.heads.base import Candidates
from prolepsis.engine.thread import ThreadEngineClient
from tests.engine.models.kernels import NEEDS_KERNELS
from tests.exact.oracle import PROMPT, Oracle, ask
from tests.exact.test_head_swap import OTHER_PROMPT, engine_with, oracle
from tests.fake_client import INFO, FakeEngineClient
from tests.server.fakes import FakeEngine
from tests.virtual_time import virtual_time
from tests.world.site import Site

FACTS: dict[str, Any] = {"target": "tiny", "misfit": None, "size": 10, "chain_of_3": 2.5}
INSTALLED = (
    InstalledHead(name="mine", version=1, aliases=("champion",), **FACTS),
    InstalledHead(name="mine", version=2, aliases=(), **FACTS),
    InstalledHead(name="broken", version=1, aliases=(), **FACTS),
    InstalledHead(name="huge", version=1, aliases=(), **FACTS),
)


@pytest.fixture
def engine() -> FakeEngine:
    engine = FakeEngine(info=replace(INFO, draft_head_reason="no head is recorded for these weights (00ff)"))
    engine.installed = INSTALLED
    return engine


@pytest.fixture
def http(engine: FakeEngine, tmp_path: Path) -> httpx2.AsyncClient:
    return Site(engine, ServerConfig(controls_file=tmp_path / "controls.json")).http


async def test_heads_are_shown_and_swapped_by_any_of_their_names(http: httpx2.AsyncClient) -> None:
    before = (await http.get("/admin/heads")).json()
    assert (before["draft_head"], before["candidate_head"]) == (None, None)
    assert before["draft_head_reason"] == "no head is recorded for these weights (00ff)"
    first = before["heads"][0]
    assert (first["name"], first["version"], first["aliases"]) == ("mine", 1, ["champion"])
    swapped = await http.put("/admin/heads", json={"head": "mine@champion", "reason": "better"})
    assert (swapped.status_code, swapped.json()["current"]) == (200, "mine@champion")
    for proposer in NAMED_HEADS:
        body = {"head": "mine@2", "proposer": proposer}
        assert (await http.put("/admin/heads", json=body)).json()["previous"] is None
    after = (await http.get("/admin/heads")).json()
    assert [after[slot] for slot in HEAD_PROPOSERS] == ["mine@champion", "mine@2", "mine@2"]
    assert (await http.put("/admin/heads", json={"head": "none"})).json()["previous"] == "mine@champion"


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"head": "other"}, 404, "unknown_head"),
        ({"head": "/etc"}, 404, "unknown_head"),
        ({"head": "mine@3"}, 404, "unknown_head"),
        ({"head": "broken"}, 409, "head_not_usable"),
        ({"head": "huge"}, 409, "head_not_usable"),
        ({"head": "mine", "proposer": "suffix"}, 400, "invalid_value"),
        ({}, 400, "missing_field"),
    ],
)
async def test_an_unusable_head_leaves_the_old_one_in_place(
    http: httpx2.AsyncClient, engine: FakeEngine, body: dict[str, str], status: int, code: str
) -> None:
    reply = await http.put("/admin/heads", json=body)
    assert (reply.status_code, engine.swaps) == (status, [])
    if status != 400:
        assert reply.json()["error"]["code"] == code


async def test_a_damaged_file_of_aliases_is_not_the_callers_fault(http: httpx2.AsyncClient, engine: FakeEngine) -> None:
    engine.heads_error = ConfigError("head aliases aliases.json is damaged: mine: input should be an object")
    for reply in (await http.get("/admin/heads"), await http.put("/admin/heads", json={"head": "mine"})):
        error = reply.json()["error"]
        assert (reply.status_code, error["code"]) == (503, "heads_unreadable")
        assert "aliases.json is damaged" in error["message"]
    assert engine.swaps == []


class Drafting(FakeEngineClient):
    """A head drafts four tokens a step; `accepted`: how many are right, by its label. It may be silent."""

    def __init__(self, accepted: dict[str, int], draft_head: str | None = None) -> None:
        super().__init__(self._answer, replace(INFO, draft_head=draft_head))
        self.installed = [InstalledHead(name=label[:-2], version=1, aliases=(), **FACTS) for label in accepted]
        self.accepted, self.is_silent, self.step_s = accepted, False, 0.005

    def _answer(self, request: GenerateRequest) -> Iterable[Event | float]:
        [proposer] = request.speculation.proposers or ()
        right = self.accepted[self.info.heads[proposer]]
        number = request.params.max_tokens // (1 + right)
        yield number * self.step_s
        counts = ProposerCounts(number, 4 * number, right * number, [[number, number * (j < right)] for j in range(4)])
        yield Finished(request.request_id, RequestStats(proposers={} if self.is_silent else {proposer: counts}))


def heads_of(client: Drafting) -> tuple[DraftHeads, list[AuditEvent]]:
    events: list[AuditEvent] = []
    return DraftHeads(client, lambda: [(1, 2)] * 16, emit=events.append), events


async def swap(heads: DraftHeads, head: str, proposer: HeadProposerName = DRAFT_HEAD) -> tuple[str, list[str]]:
    reply = await heads.swap(HeadSwapBody(head=head, proposer=proposer), "ann")
    return reply.tried, reply.warnings


@virtual_time
async def test_a_swap_says_what_the_head_brings_against_the_one_before() -> None:
    client = Drafting({"good@1": 3, "damaged@1": 0}, draft_head="good@1")
    heads, events = heads_of(client)
    tried, [warning] = await swap(heads, "damaged@1")
    assert tried.startswith(
        "1.00 tokens a pass with a draft on 16 prompts, 0.0% of 2,048 draft tokens accepted; good@1"
    )
    assert "good@1: 4.00 tokens a pass" in warning
    shown = await heads.shown()
    assert ([head.tried for head in shown.heads], shown.warnings) == (["", tried], [warning])
    swapped, event = events
    assert (swapped.action, event.action, event.actor, event.subject) == (
        *("head.swapped", "head.tried"),
        *("server", DRAFT_HEAD),
    )
    assert isinstance(event.after, dict)
    assert (event.after["head"], event.after["num_accepted"], event.after["is_much_worse"]) == ("damaged@1", 0, True)
    assert (await swap(heads, "good@1"))[1] == []
    assert (await heads.shown()).warnings == [], "it is out again"
    assert (await swap(heads, "none")) == ("", [])
    await heads.close()


@virtual_time
@pytest.mark.parametrize("proposer", NAMED_HEADS)
async def test_a_head_that_drafts_where_it_is_named_is_compared_with_the_one_for_all(
    proposer: HeadProposerName,
) -> None:
    client = Drafting({"good@1": 3, "damaged@1": 0}, draft_head="good@1")
    heads, _ = heads_of(client)
    tried, [warning] = await swap(heads, "damaged@1", proposer)
    assert "; good@1: 4.00 tokens a pass" in tried
    assert warning.startswith(f"{proposer} drafts with damaged@1")
    await heads.close()


@virtual_time
async def test_a_slow_trial_goes_on_behind_the_reply() -> None:
    client = Drafting({"good@1": 3, "damaged@1": 0}, draft_head="good@1")
    client.step_s = 0.05
    heads, _ = heads_of(client)
    assert await swap(heads, "damaged@1", CANDIDATE_HEAD) == ("it is being tried on the shipped prompts", [])
    assert (await heads.shown()).warnings == []
    await asyncio.sleep(38.0)
    [warning] = (await heads.shown()).warnings
    assert warning.startswith("candidate_head drafts with damaged@1")
    await heads.close()


@virtual_time
async def test_a_head_that_may_not_draft_now_is_tried_later() -> None:
    client = Drafting({"damaged@1": 0})
    client.is_silent = True
    heads, events = heads_of(client)
    assert await swap(heads, "damaged@1") == ("it drafted nothing on 2 prompts", [])
    client.is_silent = False
    await heads.tick()
    await asyncio.sleep(30.0)
    assert len((await heads.shown()).warnings) == 1
    await heads.tick()
    assert [event.action for event in events] == ["head.swapped", "head.tried"]


class Damaged(Oracle):
    """Says other tokens, as if its matrix were upside down."""

    def _after(self, *given: Any) -> Candidates:
        candidates = super()._after(*given)
        return replace(candidates, tokens=159 - candidates.tokens)


@asynccontextmanager
async def load(client: ThreadEngineClient, num_at_once: int) -> AsyncIterator[None]:
    async def serve(place: int) -> None:
        for number in range(1000):
            async for _ in client.generate(ask("sampled", f"{place}-{number}")):
                pass

    tasks = [asyncio.create_task(serve(place)) for place in range(num_at_once)]
    yield
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@NEEDS_KERNELS
@pytest.mark.parametrize("num_at_once", [0, 4])
async def test_a_damaged_head_is_found_within_a_minute(num_at_once: int) -> None:
    damaged = Damaged(oracle("good").texts, "damaged@1")
    client = ThreadEngineClient(engine_with({"damaged@1": damaged}, oracle("good@1")))
    client.engine.installed_heads = lambda: [InstalledHead(name="damaged", version=1, aliases=(), **FACTS)]
    found = asyncio.Event()
    heads = DraftHeads(
        client,
        lambda: [PROMPT, OTHER_PROMPT],
        emit=lambda event: found.set() if event.action == "head.tried" else None,
    )
    async with load(client, num_at_once), asyncio.timeout(60.0):
        await swap(heads, "damaged@1")
        await found.wait()
    [warning] = (await heads.shown()).warnings
    assert "damaged@1, which brings next to nothing" in warning
    assert "; good@1: " in warning
    await heads.close()
    await client.close()
