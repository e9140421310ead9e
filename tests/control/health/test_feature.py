"""Health while serving: alarms in metrics, the audit log and over HTTP; a cliff may open a breaker."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import httpx2
import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from prolepsis.control.controls.controls import Controls
from prolepsis.control.controls.file import ControlsFile
from prolepsis.control.health.breaker import Breakers, BreakerSettings
from prolepsis.control.health.breaker_runtime import BreakerRuntime
from prolepsis.control.health.drift import DriftSettings, DriftStreams
from prolepsis.control.health.drift_runtime import DriftRuntime
from prolepsis.control.health.eligibility import Eligibility
from prolepsis.control.health.feature import HealthFeature
from prolepsis.control.health.priors import AcceptancePriors
from prolepsis.control.store.controls import ControlTable
from prolepsis.control.store.migrate import migrated_in_memory
from prolepsis.core.audit_event import AuditEvent
from prolepsis.core.config import ServerConfig
from prolepsis.core.ended import RequestEnded
from prolepsis.core.stats import JudgedDraft, TrafficClassCounts
from tests.control.health.ended import TRAFFIC_CLASS, ended
from tests.fake_client import INFO, FakeEngineClient
from tests.server.fakes import FakeEngine
from tests.world.site import Site

SETTINGS = DriftSettings(cliff_judged=20, cliff_s=1.0)


class Watched:
    def __init__(self, folder: Path) -> None:
        self.registry = CollectorRegistry()
        self.events: list[AuditEvent] = []
        self.now = 0.0
        self.counts = TrafficClassCounts("draft_head", TRAFFIC_CLASS)
        self.version = "head@1 fp"
        self.left_out: list[int] = []
        breakers = BreakerRuntime(
            Breakers(BreakerSettings(min_judged=10**6)),
            lambda out: self.left_out.append(len(out)),
            self.registry,
            controls=Controls(ControlsFile(folder / "controls.json"), ControlTable(migrated_in_memory())),
        )
        self.drift = DriftRuntime(
            DriftStreams(lambda _: self.version, SETTINGS),
            self.registry,
            emit=self.events.append,
            on_cliff=lambda key: breakers.trip(key, "cliff"),
            clock=lambda: self.now,
        )
        eligibility = Eligibility(lambda _: self.version)
        priors = AcceptancePriors(FakeEngineClient(lambda _: ()), {})
        self.health = HealthFeature(
            lambda: [self.counts],
            breakers,
            self.drift,
            eligibility,
            self.registry,
            priors=priors,
            clock=lambda: self.now,
        )

    def see(self, judged: int, right: int) -> None:
        before = self.counts
        self.now += 2.0
        self.counts = replace(before, num_judged=before.num_judged + judged, num_right=before.num_right + right)
        self.drift.observe([self.counts])

    def requests(self, number: int, *, right: bool, accepted: int = 0) -> None:
        judged = {"draft_head": [JudgedDraft(right, 0.7)]}
        for _ in range(number):
            self.health.on_request_end(ended({"draft_head": accepted}, judged=judged))

    def sample(self, name: str, **labels: str) -> float | None:
        labels |= {"proposer": "draft_head", "traffic_class": TRAFFIC_CLASS}
        return self.registry.get_sample_value(f"prolepsis_{name}", labels)


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    watched = Watched(tmp_path)
    for number in range(20):
        watched.see(20, 14)
        watched.requests(10, right=number % 10 < 7, accepted=4)
    watched.see(20, 14)
    return watched


def test_a_cliff_is_reported_once_counted_and_opens_the_breaker(watched: Watched) -> None:
    assert watched.sample("drift_status", status="steady") == 1.0
    assert watched.sample("drift_acceptance") == pytest.approx(0.7)
    watched.see(40, 0)
    watched.see(40, 0)
    [event] = watched.events
    assert isinstance(event.after, dict)
    assert (event.action, event.versions, event.after["after"]) == ("drift.cliff", {"proposer": "head@1 fp"}, 0.0)
    assert event.after["before"] == pytest.approx(0.7)
    assert watched.sample("drift_alarms_total", kind="cliff") == 1.0
    assert watched.sample("drift_status", status="cliff") == 1.0
    assert watched.sample("breaker_state", state="open") == 1.0
    assert watched.left_out[-1] == 1


def test_a_benefit_that_is_gone_is_a_warning(watched: Watched) -> None:
    watched.requests(200, right=True)
    [event] = watched.events
    assert isinstance(event.after, dict)
    assert event.action == "drift.benefit_gone"
    assert event.after["before"] == pytest.approx(0.37, abs=0.04)
    assert watched.sample("drift_alarms_total", kind="benefit_gone") == 1.0
    watched.drift.observe([])
    assert watched.sample("drift_benefit_gone") == 1.0
    watched.drift.reset(("draft_head", TRAFFIC_CLASS), "key-1")
    watched.drift.observe([])
    assert watched.sample("drift_benefit_gone") == 0.0


async def test_what_was_learned_is_kept_and_read_again(tmp_path: Path) -> None:
    store = migrated_in_memory()
    before = Watched(tmp_path)
    keeper = before.health.keeper(store, time.time)
    await keeper.tick()
    before.requests(250, right=True, accepted=4)
    await keeper.close()
    after = Watched(tmp_path)
    await after.health.keeper(store, time.time).tick()
    after.requests(1, right=True, accepted=4)
    [stream] = after.drift.shown().streams
    assert (stream.status, stream.acceptance) == ("steady", 1.0)
    assert stream.benefit == pytest.approx(0.4)


class Broken(DriftStreams):
    """A fault of our own."""

    def see(self, ended: RequestEnded, now: float) -> NoReturn:
        raise RuntimeError("a fault of our own")


def test_a_judge_that_fails_silences_no_other(watched: Watched) -> None:
    watched.drift.streams = Broken(lambda _: "1")
    request = ended({"draft_head": 4})
    request.prompts[0].stats.proposers["draft_head"].num_draft_tokens = 8
    with capture_logs() as lines:
        watched.health.on_request_end(request)
    assert [line["event"] for line in lines] == ["judge_failed"]
    assert [proposer for proposer, _, _ in watched.health.eligibility.figures] == ["draft_head"]


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(counts=(TrafficClassCounts("draft_head", TRAFFIC_CLASS, num_judged=100, num_right=60),))


Connect = Callable[..., tuple[httpx2.AsyncClient, HealthFeature]]


@pytest.fixture
def connect(engine: FakeEngine) -> Connect:
    def make(**config: Any) -> tuple[httpx2.AsyncClient, HealthFeature]:
        site = Site(engine, ServerConfig(**config))
        return site.http, site.feature(HealthFeature)

    return make


async def test_over_http(engine: FakeEngine, connect: Connect) -> None:
    client, health = connect()
    async with client:
        assert (await client.get("/admin/health")).json()["drift"] == {"enabled": True, "streams": []}
        await health.tick()
        engine.counts = (TrafficClassCounts("draft_head", TRAFFIC_CLASS, num_judged=300, num_right=160),)
        await health.tick()
        [stream] = (await client.get("/admin/health")).json()["drift"]["streams"]
        assert (stream["proposer"], stream["traffic_class"], stream["status"]) == (
            "draft_head",
            TRAFFIC_CLASS,
            "learning",
        )
        assert (stream["num_judged"], stream["version"], stream["acceptance"]) == (200, INFO.fingerprint, None)
        assert health.against() == []
        body = {"proposer": "draft_head", "traffic_class": TRAFFIC_CLASS}
        reply = await client.delete("/admin/health", params=body)
        assert (reply.status_code, reply.json()["num_judged"]) == (200, 0)
        refused = await client.delete("/admin/health", params=body | {"proposer": "nobody"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "unknown_stream")


async def test_a_new_head_begins_again(engine: FakeEngine, connect: Connect) -> None:
    client, health = connect()
    async with client:
        for name, judged in (("head@1", 100), ("head@1", 300), ("head@2", 400)):
            engine.info = replace(INFO, draft_head=name)
            engine.counts = (TrafficClassCounts("draft_head", TRAFFIC_CLASS, num_judged=judged),)
            await health.tick()
        [stream] = (await client.get("/admin/health")).json()["drift"]["streams"]
        assert (stream["version"], stream["num_judged"]) == (f"head@2 {INFO.fingerprint}", 0)


async def test_it_can_be_off(connect: Connect) -> None:
    client, health = connect(drift="off")
    async with client:
        await health.tick()
        assert (await client.get("/admin/health")).json()["drift"] == {"enabled": False, "streams": []}


def test_drafts_of_a_head_that_was_exchanged_meanwhile_count_for_no_version(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.version = "head@1 fp"
    of_others = [ended(judged={"draft_head": [JudgedDraft(True, 0.5)] * 4}) for _ in range(2)]
    of_others[0].prompts[0].stats.heads = {"draft_head": None}  # while it ran
    of_others[1].prompts[0].stats.heads = {"draft_head": "head@0"}  # after it ended
    for request in of_others:
        watched.health.on_request_end(request)
    assert not watched.drift.shown().streams
    ours = ended(judged={"draft_head": [JudgedDraft(True, 0.5)] * 4, "suffix": [JudgedDraft(True, None)]})
    ours.prompts[0].stats.heads = {"draft_head": "head@1"}
    watched.health.on_request_end(ours)
    assert {stream.proposer for stream in watched.drift.shown().streams} == {"draft_head", "suffix"}
