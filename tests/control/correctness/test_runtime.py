"""Served requests are decoded again in idle time: what is found, what it counts for, and that it is in nobody's way."""

import asyncio
import json
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx2
import pytest
from msgspec import structs
from typer.testing import CliRunner, Result

from prolepsis.control.controls.file import ControlsFile
from prolepsis.control.correctness.commands import CORRECTNESS
from prolepsis.control.correctness.replay import LAST
from prolepsis.control.correctness.runtime import MAX_TRIES, Share
from prolepsis.control.store.store import Store
from prolepsis.core.config import ServerConfig
from prolepsis.core.engine_client import EngineClient
from prolepsis.core.events import Difference, Event, Tokens
from prolepsis.core.messages import ApplyPlan
from prolepsis.core.plan import SpecPlan
from prolepsis.core.requests import GenerateRequest
from prolepsis.core.telemetry.logs import configure_logs
from prolepsis.engine.thread import ThreadEngineClient
from prolepsis.server.cli.main import app
from prolepsis.server.output.pipeline import LoadedPolicy
from prolepsis.server.output.policy import stop
from tests import fakes
from tests.control.audit.test_log import entries_of
from tests.control.correctness.test_replay import Flawed, unverified
from tests.exact.serving import setup_of
from tests.fake_proposer import Scripted
from tests.server.conftest import served
from tests.server.fakes import FakeEngine
from tests.server.output.policies import Says, loaded
from tests.world.site import Site

BODY: dict[str, Any] = {
    "model": "table",
    "prompt": [1, 2, 3],
    "max_tokens": 40,
    "temperature": 1.0,
    "seed": 3,
    "ignore_eos": True,
}
POLICY = """
default:
  mode: on
  rollout: {stages: [95]}
  guardrails: [{name: same, metric: correctness, limit: 0.9}]
"""


def table(*, flawed: bool = False) -> ThreadEngineClient:
    """Return a small real engine whose drafts are wrong from the second token on, checked or not."""
    setup = setup_of(
        proposers=[Scripted(lambda sample, limit: fakes.draft_chain(sample, limit, wrong_from=1 - flawed))]
    )
    if flawed:
        setup.verifier = Flawed(unverified)
    client = ThreadEngineClient(fakes.build(setup))
    client.send(ApplyPlan(SpecPlan(fixed_depth=4)))
    return client


class Served(Site):
    async def ask(self, **changes: Any) -> dict[str, Any]:
        return dict((await self.post("/v1/completions", **BODY | changes)).json())

    async def correctness(self) -> dict[str, Any]:
        return dict((await self.get("/admin/health"))["correctness"])

    async def until(self, num_replayed: int) -> dict[str, Any]:
        """Return what is said once so many replays have ended."""
        return await self.when(lambda said: sum(said["outcomes"].values()) >= num_replayed)

    async def when(self, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        async with asyncio.timeout(20):
            while not holds(said := await self.correctness()):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        return said


@asynccontextmanager
async def serving(
    client: EngineClient, folder: Path, *, output: Sequence[LoadedPolicy] = (), **given: Any
) -> AsyncIterator[Served]:
    parts = {name: given.pop(name, None) for name in ("policy", "store")}
    config = ServerConfig(**{"replay_sample": 1.0, "controls_file": folder / "controls.json", **given})
    served = Served(client, config, folder=folder, output=output, **parts)
    async with served.running():
        yield served


async def test_a_replay_of_sampled_tokens_matches(tmp_path: Path) -> None:
    async with serving(table(), tmp_path) as served:
        assert (await served.correctness())["match_rate"] is None
        for seed in range(3):
            await served.ask(seed=seed, n=2, stop=["ab"])
        said = await served.until(3)
        assert said["outcomes"] == {"match": 3, "near_tie": 0, "structural": 0, "failed": 0}
        assert (said["enabled"], said["share"], said["match_rate"]) == (True, 1.0, 1.0)
        assert (said["exactness"], said["differences"], said["num_queued"]) == ("strict", [], 0)
        assert served.sample("replays_total", outcome="match") == 3.0
        assert served.sample("replays_total", outcome="structural") == 0.0


async def test_a_corrupted_emission_is_structural_and_on_record(tmp_path: Path, store: Store) -> None:
    async with serving(table(flawed=True), tmp_path, store=store) as served:
        await served.ask()
        said = await served.until(1)
        [difference] = said["differences"]
        assert (said["match_rate"], said["outcomes"]["structural"]) == (0.0, 1)
        assert (difference["kind"], difference["mode"], difference["route"]) == ("structural", "on", "/v1/completions")
        assert difference["margin"] is None or difference["margin"] > difference["tolerance"]
        assert served.sample("replays_total", outcome="structural") == 1.0
        assert served.sample("speculation_killed", source="operator") == 0.0
        [example] = (await served.get("/admin/requests?only=mismatched"))["requests"]
        assert (example["mismatch"], example["diff"]) == (difference, None), "no text is kept by default"
        assert 0.0 <= difference["similarity"] < 1.0
        assert said["similarity"]["mean"] == served.sample("replay_similarity_total") == difference["similarity"]
    assert store.writer.flush(20.0)
    [entry] = entries_of(store.database)
    assert entry.action == "replay.structural"
    assert entry.details is not None
    assert entry.details.subject == difference["request_id"]
    assert isinstance(entry.details.after, dict)
    assert entry.details.after["position"] == difference["position"]
    assert entry.versions["fingerprint"] == "fp"


@pytest.mark.parametrize(("after", "number", "killed"), [(0, 2, False), (2, 1, False), (2, 2, True)])
async def test_structural_differences_turn_the_kill_switch_on_by_setting(
    tmp_path: Path, after: int, number: int, killed: bool
) -> None:
    async with serving(table(flawed=True), tmp_path, limits={"replay_trip_after": after}) as served:
        for seed in range(number):
            await served.ask(seed=seed)
        assert (await served.until(number))["outcomes"]["structural"] == number
        status = (await served.http.get("/admin/kill")).json()
        assert (status["on"], [entry["by"] for entry in status["operator"]]) == (killed, ["replays"] * killed)
        assert ("kill everything" in ControlsFile(tmp_path / "controls.json").read().local) is killed
        if killed:
            assert "2 replayed requests had other tokens" in status["operator"][0]["reason"]
            reply = await served.http.post("/v1/completions", json=BODY)
            assert "mode=off;reason=killed" in reply.headers["x-spec-effective"]


@pytest.mark.parametrize("flawed", [False, True])
async def test_replays_are_evidence_for_the_arm_of_the_request(tmp_path: Path, flawed: bool) -> None:
    async with serving(table(flawed=flawed), tmp_path, policy=POLICY) as served:
        [rollout] = (await served.http.get("/admin/rollouts")).json()["rollouts"]
        assert (await served.http.post(f"/admin/rollouts/{rollout['id']}/start", json={})).status_code == 200
        for seed in range(12):
            await served.ask(seed=seed, prompt=[[1, 2], [3, 4]])
        await served.until(24)
        shown = (await served.http.get(f"/admin/rollouts/{rollout['id']}")).json()
        assert shown["num_canary"] + shown["num_control"] == 12, "a request is counted once"
        [guardrail] = shown["judgement"]["guardrails"]
        assert guardrail["num_canary"] == shown["num_canary"] > 0, "one of the prompts counts"
        assert guardrail["estimate"] == (0.0 if flawed else 1.0)


class Slow(FakeEngine):
    """Answers at once; replays last until they are told to continue, or aborted."""

    def __init__(self) -> None:
        super().__init__()
        self.replaying = asyncio.Event()
        self.gave_way = asyncio.Event()
        self.go_on = asyncio.Event()

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Event, None]:
        if request.is_replay:
            assert request.priority == LAST
            assert not request.speculation.enabled
            self.replaying.set()
            try:
                await self.go_on.wait()
            finally:
                self.replaying.clear()
                self.gave_way.set()
        async for event in super().generate(request):
            yield event


FAKE: dict[str, Any] = {"model": "tiny", "prompt": "Hi", "temperature": 0}


async def test_a_replay_gives_way_and_begins_again(tmp_path: Path) -> None:
    engine = Slow()
    async with serving(engine, tmp_path, limits={"replay_beside": 0}) as served:
        await served.ask(**FAKE)
        await engine.replaying.wait()
        engine.delay_s = 0.1  # the next request is in the engine for longer than it takes to look
        await served.ask(**FAKE)
        assert served.sample("replay_interrupted_total") == 1.0
        engine.go_on.set()
        said = await served.until(2)
        assert (said["outcomes"]["match"], said["dropped"]["interrupted"]) == (2, 0)


async def test_a_replay_that_is_interrupted_too_often_is_dropped_and_counted(tmp_path: Path) -> None:
    engine = Slow()
    async with serving(engine, tmp_path, limits={"replay_beside": 0}) as served:
        await served.ask(**FAKE)
        gate = served.app.state.admission
        for _ in range(MAX_TRIES):
            await asyncio.wait_for(engine.replaying.wait(), 5)
            gate.draining = True  # nothing may be replayed now
            await asyncio.wait_for(engine.gave_way.wait(), 5)
            engine.gave_way.clear()
            gate.draining = False
        said = await served.when(lambda said: said["dropped"]["interrupted"] > 0)
        assert (said["dropped"]["interrupted"], sum(said["outcomes"].values())) == (1, 0)
        assert served.sample("replay_interrupted_total") == MAX_TRIES - 1


async def test_replays_wait_while_requests_wait_or_no_place_is_free(tmp_path: Path) -> None:
    engine = FakeEngine(hold_after=1)
    async with serving(engine, tmp_path, max_in_engine=1) as served:
        gate = served.app.state.admission
        assert gate.has_room(None)
        assert gate.has_room(0)
        asking = [asyncio.create_task(served.ask(**FAKE)) for _ in range(2)]
        await engine.asked.wait()
        assert not gate.has_room(None)
        assert not gate.has_room(5)
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        assert gate.has_room(None)


async def test_the_queue_has_a_bound_and_what_is_dropped_is_counted(tmp_path: Path) -> None:
    engine = Slow()
    async with serving(engine, tmp_path, limits={"replay_queue": 2}) as served:
        for _ in range(5):
            await served.ask(**FAKE)
        said = await served.correctness()
        assert said["num_queued"] + said["dropped"]["queue_full"] >= 4
        assert said["dropped"]["queue_full"] >= 2
        assert served.sample("replay_dropped_total", reason="queue_full") == said["dropped"]["queue_full"]
    assert served.sample("replay_dropped_total", reason="closed") == 5 - said["dropped"]["queue_full"]


async def test_unfinished_and_stored_answers_are_not_replayed(tmp_path: Path) -> None:
    async with serving(FakeEngine(), tmp_path, response_cache_bytes=2**20) as served:
        await served.ask(**FAKE)
        await served.ask(**FAKE)
        await served.until(1)
    engine = FakeEngine(hold_after=1)
    async with serving(engine, tmp_path) as served:
        asking = asyncio.create_task(served.ask(**FAKE))
        await engine.asked.wait()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        engine.hold_after = None
        await served.ask(**FAKE)
        assert (await served.until(1))["num_queued"] == 0
        assert [request.is_replay for request in engine.requests] == [False, False, True]


async def test_an_answer_that_the_server_cut_is_not_replayed(tmp_path: Path) -> None:
    """The engine never finished it, so what it would have said next is not known to be wrong."""
    cutting = loaded(Says(lambda pending, ended: stop(0, "enough")))
    async with serving(table(), tmp_path, output=[cutting]) as served:
        reply = await served.ask()
        assert reply["choices"][0]["finish_reason"] == "content_filter"
        said = await served.correctness()
        assert (said["num_queued"], sum(said["outcomes"].values())) == (0, 0)
        await served.ask(max_tokens=1)
        [violated, _] = (await served.get("/admin/requests?only=violated"))["requests"]
        assert violated["stopped_by"] == ["one"]


async def test_a_mismatch_shows_where_the_answers_part_as_far_as_texts_are_kept(tmp_path: Path) -> None:
    async with serving(table(flawed=True), tmp_path, audit_content="tokens") as served:
        await served.ask()
        [difference] = (await served.until(1))["differences"]
        [example] = (await served.get("/admin/requests?only=mismatched"))["requests"]
        diff, name = example["diff"], example["record"]["request_id"]
        assert (name, diff["recorded_ids"][1:] != [], len(diff["replayed_ids"])) == (
            *(difference["request_id"], True),
            40 - difference["position"],
        )
        assert diff["recorded_ids"][0] != diff["replayed_ids"][0]
        [one] = (await served.get(f"/admin/requests/{name}"))["requests"]
        assert (one["diff"], one["mismatch"]) == (diff, difference)


async def test_a_replay_that_matches_is_no_example_and_wholly_similar(tmp_path: Path) -> None:
    async with serving(table(), tmp_path, audit_content="tokens") as served:
        await served.ask()
        said = await served.until(1)
        assert said["similarity"] == {"num_compared": 1, "mean": 1.0, "lowest": 1.0, "is_low": False}
        assert (await served.get("/admin/requests?only=mismatched"))["requests"] == []


async def test_a_replay_that_fails_is_counted_and_the_next_one_runs(tmp_path: Path) -> None:
    class Broken(FakeEngine):
        async def generate(self, request: GenerateRequest) -> AsyncGenerator[Event, None]:
            if request.is_replay and len(self.requests) < 3:
                self.requests.append(request)
                raise RuntimeError("out of order")
            async for event in super().generate(request):
                yield event

    async with serving(Broken(), tmp_path) as served:
        await served.ask(**FAKE)
        await served.until(1)
        await served.ask(**FAKE)
        said = await served.until(2)
        assert (said["outcomes"]["failed"], said["outcomes"]["match"], said["match_rate"]) == (1, 1, 1.0)


async def test_off_is_off(tmp_path: Path) -> None:
    engine = FakeEngine()
    async with serving(engine, tmp_path, replay_sample=0.0) as served:
        for _ in range(3):
            await served.ask(**FAKE)
        said = await served.correctness()
        assert (said["enabled"], sum(said["outcomes"].values()), said["num_queued"]) == (False, 0, 0)
    assert not any(request.is_replay for request in engine.requests)


@pytest.mark.parametrize(("share", "least", "most"), [(0.01, 50, 150), (0.3, 1, 6)])
def test_a_share_is_spread_evenly_and_in_no_pattern(share: float, least: int, most: int) -> None:
    drawn = Share(share, randomness=random.Random(0))
    places = [i for i in range(100_000) if drawn.draw()]
    gaps = _gaps(places)
    assert len(places) == pytest.approx(100_000 * share, rel=0.02)
    assert min(gaps) >= least
    assert max(gaps) <= most
    assert len(set(gaps)) > 2
    assert places[0] + 1 >= least


def test_all_and_nothing_are_shares_too() -> None:
    assert all(Share(1.0).draw() for _ in range(100))
    assert not any(Share(0.0).draw() for _ in range(100))


def _gaps(places: Sequence[int]) -> list[int]:
    return [after - before for before, after in pairwise(places)]


DIFFERENCE = Difference(7, 65, 66, "structural", 4.5, 0.25)


class Parting(FakeEngine):
    """Replays whose first sample parts from what was emitted, where the prompt says so."""

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Event, None]:
        differs = request.is_replay and request.prompt_token_ids == tuple(b"wrong")
        async for event in super().generate(request):
            yield structs.replace(event, difference=DIFFERENCE) if differs and isinstance(event, Tokens) else event


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    configure_logs("error")  # the server runs in this process: its lines would be among the command's
    with served(Parting(), ServerConfig(replay_sample=1.0, controls_file=tmp_path / "controls.json")) as running:
        yield running.url


def run(url: str, *words: str) -> Result:
    return CliRunner().invoke(app, ["show", "correctness", "--url", url, *words])


def ask(url: str, prompt: str, num_replayed: int) -> None:
    with httpx2.Client(base_url=url) as http:
        http.post("/v1/completions", json={"model": "tiny", "prompt": prompt}).raise_for_status()
        while sum(http.get("/admin/health").json()["correctness"]["outcomes"].values()) < num_replayed:
            pass


def test_status_and_figures_say_how_it_stands(url: str) -> None:
    before = run(url)
    assert (before.exit_code, "100%" in before.stdout) == (0, True)
    ask(url, "right", 1)
    good = run(url, "--json")
    assert (good.exit_code, json.loads(good.stdout)["match_rate"]) == (0, 1.0)
    ask(url, "wrong", 2)
    bad = run(url)
    assert bad.exit_code == 1
    assert "50%" in bad.stdout
    assert "structural" in bad.stdout
    assert "4.5" in bad.stdout


@pytest.mark.parametrize(("structural", "is_low"), [(0, False), (1, False), (0, True)])
def test_the_status_is_that_of_a_defect_or_of_low_similarity(structural: int, is_low: bool) -> None:
    document = {"outcomes": {"structural": structural}, "similarity": {"is_low": is_low}}
    assert CORRECTNESS.fails(document) is bool(structural or is_low)


def test_a_missing_server_is_reported() -> None:
    result = run("http://127.0.0.1:9")
    assert result.exit_code == 2
    assert "no server answers at http://127.0.0.1:9" in result.stderr
