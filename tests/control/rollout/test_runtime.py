"""Rollouts over HTTP, with an engine of known logits and a clock set by hand: up through the stages, and back."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, Connection
from structlog.testing import capture_logs
from structlog.typing import EventDict

from prolepsis.control.policy.check import parse_policy
from prolepsis.control.policy.model import Policy
from prolepsis.control.policy.source import PolicyFile
from prolepsis.control.rollout.machine import RolloutState
from prolepsis.control.rollout.runtime import Rollouts
from prolepsis.control.rollout.store import RolloutStore
from prolepsis.control.store.database import Database
from prolepsis.control.store.migrate import migrated_in_memory
from prolepsis.control.store.store import Store
from prolepsis.control.store.writer import ItemWriter
from prolepsis.core.clock import SteadyClock
from prolepsis.core.errors import StoreUnavailable
from prolepsis.core.messages import ApplyPlan
from prolepsis.core.plan import SpecPlan
from prolepsis.core.requests import SamplingParams
from prolepsis.engine.drafting.draft import Draft
from prolepsis.engine.drafting.proposer import SequenceView
from prolepsis.engine.sampling.noise import noise_key
from prolepsis.engine.thread import ThreadEngineClient
from tests import fakes
from tests.fake_proposer import Scripted
from tests.world.site import Site

POLICY = """
rules:
  - name: code
    match: {route: /v1/completions}
    mode: on
    rollout: {stages: [30, 60], holdout: 10, gate: GATE, min_stage_s: 10, max_stage_s: 1000}
    guardrails:
      - {name: taken, metric: acceptance_rate, limit: 0.4}
      - {name: errors, metric: error_rate, limit: 0.2}
      - {name: slow, metric: latency_p95_ms, margin: 5, dry_run: true}
"""


class FullDatabase(Database):
    full = False

    def __init__(self) -> None:
        super().__init__(URL.create("sqlite"), content=migrated_in_memory().serialized())

    @contextmanager
    def write(self, *, urgent: bool = False) -> Iterator[Connection]:
        if self.full:
            raise StoreUnavailable("no space left on device")
        with super().write(urgent=urgent) as connection:
            yield connection


@dataclass
class Server:
    """A server whose proposer is right until it is damaged."""

    folder: Path
    database: Database = field(default_factory=FullDatabase)
    gate: str = "automatic"
    damaged: bool = False
    now: float = 1000.0
    is_broken: bool = False
    """Whether each step of the rollouts fails."""
    num_asked: int = 0
    arms: list[tuple[str, str]] = field(default_factory=list)
    """(arm, mode in effect) of every request, in order."""

    def __post_init__(self) -> None:
        engine = fakes.build(fakes.EngineSetup(proposers=[Scripted(self._draft)]))
        self.client = ThreadEngineClient(engine)
        self.client.send(ApplyPlan(SpecPlan(fixed_depth=4)))
        self.store = RolloutStore(self.database)
        site = Site(
            self.client,
            folder=self.folder,
            policy=POLICY.replace("GATE", self.gate),
            store=Store(self.database, ItemWriter()),
            clock=self._clock,
        )
        self.metrics, self.http, self.rollouts = site.metrics, site.http, site.feature(Rollouts)

    def _draft(self, sequence: SequenceView, limit: int) -> Draft | None:
        return fakes.draft_chain(sequence, limit, wrong_from=0 if self.damaged else 99)

    def _clock(self) -> float:
        if self.is_broken:
            raise ZeroDivisionError
        return self.now

    async def ask(self, number: int) -> None:
        """Ask `number` requests at once; every answer is that of plain decoding."""
        first, self.num_asked = self.num_asked, self.num_asked + number
        await asyncio.gather(*(self._ask_one(i) for i in range(first, first + number)))

    async def _ask_one(self, i: int) -> None:
        prompt = [1 + i % 20, 1 + i // 20 % 20, 3]
        body: dict[str, Any] = {"model": "table", "prompt": prompt, "max_tokens": 12, "seed": i, "temperature": 1.0}
        asked = {"ignore_eos": True, "return_token_ids": True, "speculation": {"metrics": True}}
        reply = await self.http.post("/v1/completions", json=body | asked)
        assert reply.status_code == 200, reply.text
        params = SamplingParams(temperature=1.0, seed=i, max_tokens=12, ignore_eos=True)
        plain = fakes.reference(fakes.request("r", prompt, params), noise_key(i, 0))
        assert reply.json()["choices"][0]["token_ids"] == plain
        effective = reply.json()["metrics"]["effective"]
        self.arms.append((effective["arm"], effective["mode"]))

    async def go_on(self, seconds: float = 6.0) -> None:
        self.now += seconds
        await self.rollouts.tick()

    @property
    def state(self) -> RolloutState:
        [state] = self.store.states().values()
        return state

    @property
    def changes(self) -> list[tuple[str, str]]:
        return [(event.kind, event.stage) for event in self.store.events(self.state.rollout_id)]

    async def until(self, phase: str, stage: int, *, most: int = 60) -> None:
        for _ in range(most):
            if (self.state.phase, self.state.stage) == (phase, stage):
                return
            await self.ask(16)
            await self.go_on()
        raise AssertionError(f"still {self.state} after {self.num_asked} requests")

    async def stopped(self) -> frozenset[str]:
        """Return the runs that the engine stopped, once its thread has taken in that there is one."""
        async with asyncio.timeout(5.0):
            while not (found := self.client.engine.plan.current.stopped):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return found

    async def close(self) -> None:
        await self.http.aclose()
        await self.client.close()


@pytest.fixture(autouse=True)
def logs() -> Iterator[list[EventDict]]:
    """What is logged, unwritten: to write a traceback with its variables takes a fifth of a second."""
    with capture_logs() as kept:
        yield kept


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    made = Server(tmp_path)
    yield made
    await made.close()


async def test_harm_is_counted_from_zero_so_that_an_alert_sees_the_first_rise(server: Server) -> None:
    await server.go_on()
    for kind in ("rolled_back", "set_back"):
        labels = {"rule": "code", "kind": kind}
        assert server.metrics.registry.get_sample_value("prolepsis_rollout_changes_total", labels) == 0.0


async def test_a_good_proposer_goes_from_off_to_on_and_the_control_stays_plain(server: Server) -> None:
    await server.ask(3)
    assert {mode for _, mode in server.arms} == {"off"}
    await server.go_on()
    await server.until("on", 2)
    assert server.changes == [
        ("started", "shadow"),
        ("promoted", "shadow"),
        ("promoted", "canary 30%"),
        ("completed", "canary 60%"),
    ]
    kinds = set(server.arms)
    assert {("canary", "shadow"), ("canary", "on"), ("unassigned", "off"), ("holdout", "off")} == kinds
    server.arms.clear()
    await server.ask(60)
    assert set(server.arms) == {("canary", "on"), ("holdout", "off")}
    text = server.metrics.exposition().decode()
    assert 'prolepsis_rollout_changes_total{kind="promoted",rule="code"} 2.0' in text
    assert 'prolepsis_rollout_share{rule="code"} 0.9' in text


async def test_a_damaged_proposer_is_rolled_back_without_a_failed_request(server: Server) -> None:
    await server.go_on()
    await server.until("running", 1)
    server.damaged = True
    await server.until("rolled_back", 1)
    event = (await server.rollouts.events(server.state.rollout_id))[-1]
    assert (event.kind, event.reason, event.stage) == ("rolled_back", "taken", "canary 30%")
    assert event.judgement is not None
    [taken] = [f for f in event.judgement.guardrails if f.name == "taken"]
    assert taken.estimate < 0.4 < taken.allowed + 1e-9
    assert event.policy_version
    server.arms.clear()
    await server.ask(30)
    assert {mode for _, mode in server.arms} == {"off"}
    assert await server.stopped() == {f"{server.state.rollout_id}#1"}


async def test_a_restart_in_mid_canary_goes_on_there(server: Server, tmp_path: Path) -> None:
    await server.go_on()
    await server.until("running", 1)
    before = server.state
    again = Server(tmp_path, database=server.database, now=server.now)
    await again.ask(30)
    assert ("canary", "on") in again.arms
    await again.go_on(1.0)
    assert (again.state.run, again.state.stage) == (before.run, before.stage)
    await again.until("on", 2)
    await server.go_on(0.0)  # the first server, another replica now, follows
    server.arms.clear()
    await server.ask(40)
    assert set(server.arms) == {("canary", "on"), ("holdout", "off")}
    await again.close()


async def test_without_a_store_rollouts_are_not_promoted_but_still_rolled_back(server: Server) -> None:
    assert isinstance(server.database, FullDatabase)
    await server.go_on()
    await server.until("running", 1)
    server.database.full = True
    for _ in range(6):
        await server.ask(16)
        await server.go_on()
    assert (server.state.phase, server.state.stage) == ("running", 1)
    server.damaged = True
    while (await server.rollouts.view(server.state.rollout_id)).phase != "rolled_back":
        assert server.num_asked < 1000
        await server.ask(16)
        await server.go_on()
    assert server.state.phase == "running"  # as kept
    server.arms.clear()
    await server.ask(20)
    assert {mode for _, mode in server.arms} == {"off"}
    server.database.full = False
    await server.go_on()
    assert server.changes[-1] == ("rolled_back", "canary 30%")


async def test_a_controller_that_crashes_leaves_the_last_plan(server: Server) -> None:
    await server.go_on()
    await server.until("running", 1)
    server.is_broken = True
    server.arms.clear()
    for _ in range(3):
        await server.ask(16)
        await server.go_on()
    assert (server.state.phase, server.state.stage) == ("running", 1)
    assert {("canary", "on"), ("unassigned", "off")} <= set(server.arms)


async def test_with_a_manual_gate_an_operator_starts_and_promotes(tmp_path: Path) -> None:
    server = Server(tmp_path, gate="manual")
    await server.go_on()
    assert server.store.states() == {}
    [view] = await server.rollouts.views()
    assert (view.phase, view.rule) == ("off", "code")
    rollout_id = view.id
    await server.rollouts.command(rollout_id, "start", "by me")
    await server.until("gate", 0)
    await server.go_on(10_000.0)
    assert server.state.phase == "gate"
    await server.rollouts.command(rollout_id, "promote", "by me: looks good")
    assert (server.state.phase, server.state.stage) == ("running", 1)
    await server.rollouts.command(rollout_id, "rollback", "by me")
    assert server.changes == [
        ("started", "shadow"),
        ("gate_reached", "shadow"),
        ("promoted", "shadow"),
        ("rolled_back", "canary 30%"),
    ]
    await server.close()


async def test_a_rule_that_is_put_back_goes_on_with_what_it_saw(server: Server) -> None:
    await server.go_on()
    await server.until("running", 1)
    await server.ask(20)
    [before] = await server.rollouts.views()
    assert before.num_canary + before.num_control > 0
    first = PolicyFile(server.folder / "policy.yaml").policy
    server.rollouts.adopt(parse_policy(POLICY.replace("GATE", "automatic").replace("0.4", "0.3"), "edited")[0])
    [edited] = await server.rollouts.views()
    assert (edited.phase, edited.num_canary) == ("off", 0)
    server.rollouts.adopt(first)
    assert list(await server.rollouts.views()) == [before]

    server.rollouts.adopt(Policy())
    held = replace(server.state.changed("held"), held_at=server.now)
    assert server.store.swap(held, ())  # by another replica, whose policy has it still
    await server.go_on(1.0)
    server.rollouts.adopt(first)
    [after] = await server.rollouts.views()
    assert (after.phase, after.num_canary) == ("held", before.num_canary)


async def test_a_clock_that_was_set_back_before_a_restart_holds_up_nothing(server: Server, tmp_path: Path) -> None:
    await server.go_on()
    await server.until("running", 1)
    again = Server(tmp_path, database=server.database, now=server.now - 1e6)
    await again.until("on", 2)
    await again.close()


def test_a_clock_that_is_set_promotes_nothing() -> None:
    wall, steady = [5000.0], [10.0]
    clock = SteadyClock(lambda: wall[0], lambda: steady[0])
    assert clock() == 5000.0
    wall[0], steady[0] = 9e9, 11.0
    assert clock() == 5001.0
