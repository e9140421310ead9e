"""Rollouts over HTTP, with an engine of known logits and a clock set by hand: up through the stages, and back."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from prolepsis.api.app import Door, build
from prolepsis.api.steady_clock import SteadyClock
from prolepsis.core.config import ServerConfig
from prolepsis.core.plan import SpecPlan
from prolepsis.core.requests import SamplingParams
from prolepsis.engine.thread import ThreadEngineClient
from prolepsis.policy.model import Policy
from prolepsis.policy.reading import parse_policy
from prolepsis.policy.runtime import Policies, open_policy
from prolepsis.rollout.journal import MemoryJournal, RolloutJournal
from prolepsis.rollout.machine import RolloutEvent, RolloutState
from prolepsis.rollout.runtime import Rollouts
from prolepsis.sampling.noise import noise_key
from prolepsis.spec.draft import Draft
from prolepsis.spec.proposer import SequenceView
from prolepsis.telemetry.metrics import Metrics
from tests import fakes
from tests.api.fakes import ByteTokenizer
from tests.fake_proposer import Scripted

POLICY = """
rules:
  - name: code
    match: {route: /v1/completions}
    mode: on
    rollout: {step_weights: [30, 60], control_weight: 10, gate: GATE, min_step_s: 10, max_step_s: 1000}
    guardrails:
      - {name: taken, metric: acceptance_rate, limit: 0.4}
      - {name: errors, metric: error_rate, limit: 0.2}
      - {name: slow, metric: latency_p95_ms, margin: 5, dry_run: true}
"""


class FullJournal(MemoryJournal):
    """A journal whose disk may be full."""

    full = False

    def swap(self, state: RolloutState, events: Sequence[RolloutEvent]) -> bool:
        if self.full:
            raise OSError(28, "No space left on device")
        return super().swap(state, events)


@dataclass
class House:
    """A server whose proposer is right until it is damaged."""

    folder: Path
    journal: RolloutJournal = field(default_factory=FullJournal)
    gate: str = "automatic"
    damaged: bool = False
    now: float = 1000.0
    num_asked: int = 0
    arms: list[tuple[str, str]] = field(default_factory=list)
    """(arm, mode in effect) of every request, in order."""

    def __post_init__(self) -> None:
        engine = fakes.build(fakes.Room(proposers=[Scripted(self._draft)]))
        self.client = ThreadEngineClient(engine)
        self.client.apply_plan(SpecPlan(fixed_depth=4))
        (self.folder / "policy.yaml").write_text(POLICY.replace("GATE", self.gate))
        metrics = Metrics()
        self.metrics = metrics
        self.rollouts = Rollouts(
            self.journal, self.client.stop_run, metrics.rollouts, model="table", clock=lambda: self.now
        )
        policies = Policies(open_policy(self.folder / "policy.yaml"), ("scripted",), self.rollouts)
        app = build(ServerConfig(), self.client, ByteTokenizer(), metrics, Door(), policies=policies)
        self.http = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost")

    def _draft(self, sequence: SequenceView, limit: int) -> Draft | None:
        return fakes.draft_chain(sequence, limit, wrong_from=0 if self.damaged else 99)

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
        [state] = self.journal.states().values()
        return state

    @property
    def told(self) -> list[tuple[str, str]]:
        return [(event.kind, event.stage) for event in self.journal.events(self.state.rollout_id)]

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
            while not (found := self.client.engine.scheduler.plan.stopped):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return found

    async def close(self) -> None:
        await self.http.aclose()
        await self.client.close()


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    made = House(tmp_path)
    yield made
    await made.close()


async def test_a_good_proposer_goes_from_off_to_on_and_the_control_stays_plain(house: House) -> None:
    await house.ask(3)
    assert {mode for _, mode in house.arms} == {"off"}
    await house.go_on()
    await house.until("on", 2)
    assert house.told == [
        ("started", "shadow"),
        ("promoted", "shadow"),
        ("promoted", "canary 30%"),
        ("completed", "canary 60%"),
    ]
    kinds = set(house.arms)
    assert {("canary", "shadow"), ("canary", "on"), ("rest", "off"), ("control", "off")} == kinds
    house.arms.clear()
    await house.ask(60)
    assert set(house.arms) == {("canary", "on"), ("control", "off")}
    text = house.metrics.exposition().decode()
    assert 'prolepsis_rollout_changes_total{kind="promoted",rule="code"} 2.0' in text
    assert 'prolepsis_rollout_share{rule="code"} 0.9' in text


async def test_a_damaged_one_is_rolled_back_and_nobody_notices(house: House) -> None:
    await house.go_on()
    await house.until("running", 1)
    house.damaged = True
    await house.until("rolled_back", 1)
    event = (await house.rollouts.events(house.state.rollout_id))[-1]
    assert (event.kind, event.reason, event.stage) == ("rolled_back", "taken", "canary 30%")
    assert event.verdict is not None
    [taken] = [f for f in event.verdict.guardrails if f.name == "taken"]
    assert taken.estimate < 0.4 < taken.allowed + 1e-9
    assert event.plan_version
    house.arms.clear()
    await house.ask(30)
    assert {mode for _, mode in house.arms} == {"off"}
    assert await house.stopped() == {f"{house.state.rollout_id}#1"}


async def test_a_restart_in_mid_canary_goes_on_there(house: House, tmp_path: Path) -> None:
    await house.go_on()
    await house.until("running", 1)
    before = house.state
    again = House(tmp_path, journal=house.journal, now=house.now)
    await again.ask(30)
    assert ("canary", "on") in again.arms
    await again.go_on(1.0)
    assert (again.state.run, again.state.stage) == (before.run, before.stage)
    await again.until("on", 2)
    await house.go_on(0.0)  # the first server, another replica now, follows
    house.arms.clear()
    await house.ask(40)
    assert set(house.arms) == {("canary", "on"), ("control", "off")}
    await again.close()


async def test_what_cannot_be_kept_is_not_promoted_and_rolled_back_all_the_same(house: House) -> None:
    assert isinstance(house.journal, FullJournal)
    await house.go_on()
    await house.until("running", 1)
    house.journal.full = True
    for _ in range(6):
        await house.ask(16)
        await house.go_on()
    assert (house.state.phase, house.state.stage) == ("running", 1)
    house.damaged = True
    while (await house.rollouts.view(house.state.rollout_id)).state.phase != "rolled_back":
        assert house.num_asked < 1000
        await house.ask(16)
        await house.go_on()
    assert house.state.phase == "running"  # as kept
    house.arms.clear()
    await house.ask(20)
    assert {mode for _, mode in house.arms} == {"off"}
    house.journal.full = False
    await house.go_on()
    assert house.told[-1] == ("rolled_back", "canary 30%")


async def test_a_controller_that_crashes_leaves_the_last_plan(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    await house.go_on()
    await house.until("running", 1)

    def crash(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("prolepsis.rollout.runtime.look", crash)
    house.arms.clear()
    for _ in range(3):
        await house.ask(16)
        await house.go_on()
    assert (house.state.phase, house.state.stage) == ("running", 1)
    assert {("canary", "on"), ("rest", "off")} <= set(house.arms)


async def test_with_a_manual_gate_somebody_starts_and_promotes(tmp_path: Path) -> None:
    house = House(tmp_path, gate="manual")
    await house.go_on()
    assert house.journal.states() == {}
    [view] = await house.rollouts.views()
    assert (view.state.phase, view.rule) == ("off", "code")
    rollout_id = view.state.rollout_id
    await house.rollouts.command(rollout_id, "start", "by me")
    await house.until("gate", 0)
    await house.go_on(10_000.0)
    assert house.state.phase == "gate"
    await house.rollouts.command(rollout_id, "promote", "by me: looks good")
    assert (house.state.phase, house.state.stage) == ("running", 1)
    await house.rollouts.command(rollout_id, "rollback", "by me")
    assert house.told == [
        ("started", "shadow"),
        ("gate_reached", "shadow"),
        ("promoted", "shadow"),
        ("rolled_back", "canary 30%"),
    ]
    await house.close()


async def test_a_rule_that_is_put_back_goes_on_with_what_it_saw(house: House) -> None:
    await house.go_on()
    await house.until("running", 1)
    await house.ask(20)
    [before] = await house.rollouts.views()
    assert before.num_canary + before.num_control > 0
    first = open_policy(house.folder / "policy.yaml").policy
    house.rollouts.adopt(parse_policy(POLICY.replace("GATE", "automatic").replace("0.4", "0.3"), "edited")[0])
    [edited] = await house.rollouts.views()
    assert (edited.state.phase, edited.num_canary) == ("off", 0)
    house.rollouts.adopt(first)
    assert list(await house.rollouts.views()) == [before]

    house.rollouts.adopt(Policy())
    held = replace(house.state.changed("held"), held_at=house.now)
    assert house.journal.swap(held, ())  # by another replica, whose policy has it still
    await house.go_on(1.0)
    house.rollouts.adopt(first)
    [after] = await house.rollouts.views()
    assert (after.state.phase, after.num_canary) == ("held", before.num_canary)


async def test_a_clock_that_was_set_back_before_a_restart_holds_up_nothing(house: House, tmp_path: Path) -> None:
    await house.go_on()
    await house.until("running", 1)
    again = House(tmp_path, journal=house.journal, now=house.now - 1e6)
    await again.until("on", 2)
    await again.close()


def test_a_clock_that_is_set_promotes_nothing() -> None:
    wall, steady = [5000.0], [10.0]
    clock = SteadyClock(lambda: wall[0], lambda: steady[0])
    assert clock() == 5000.0
    wall[0], steady[0] = 9e9, 11.0
    assert clock() == 5001.0
