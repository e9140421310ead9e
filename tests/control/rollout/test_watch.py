"""After a rollout is on: harm takes it back, to plain or to its last stage, and nothing else does."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from prolepsis.control.policy.check import parse_policy
from prolepsis.control.policy.rollout_terms import OnHarm
from prolepsis.control.rollout.live import LiveRollout, RolloutTarget, step_with_references, stopped_runs, targets_of
from prolepsis.control.rollout.machine import RolloutState, step
from prolepsis.control.rollout.settings import RolloutSettings, stages
from prolepsis.control.statistics.guardrail import Guardrail
from prolepsis.control.statistics.means import Limit, MeanDifference
from prolepsis.core.messages import ApplyPlan
from prolepsis.core.plan import SpecPlan
from prolepsis.engine.speculation import Speculation
from tests.control.rollout.test_runtime import POLICY, Server
from tests.engine.test_payback import Told

TAKEN = Guardrail(name="taken", metric="acceptance", measure=Limit(limit=0.3, num_points=33), better="higher")
ERRORS = Guardrail(name="errors", metric="error", measure=MeanDifference(margin=0.1))
SETTINGS = RolloutSettings(stages=stages((TAKEN, ERRORS), shares=(0.2, 0.5)), holdout=0.1)
ON = RolloutState("code@1", policy_version="p", version=5, run=1, phase="on", stage=1)


def live(settings: RolloutSettings = SETTINGS, state: RolloutState = ON) -> LiveRollout:
    return LiveRollout(RolloutTarget("code@1", "code", settings, starts_itself=True), state)


def serve(rollout: LiveRollout, minutes: range, acceptance: float, *, error: float = 0.0) -> None:
    for second in range(60 * minutes.start, 60 * minutes.stop):
        assignment = rollout.assign(f"r{second}")
        harmed = assignment.arm == "canary"
        values = {"acceptance": acceptance} if harmed else {}
        rollout.observe(assignment, {"error": error * harmed, **values}, now=float(second))


def stepped(rollout: LiveRollout, minute: int) -> tuple[RolloutState, str]:
    now, settings = 60.0 * minute, rollout.settings
    state, events = step(rollout.state, rollout.all_evidence(now), now, settings)
    return state, events[0].kind if events else ""


def test_a_healthy_rollout_stays_on_and_harm_is_seen_within_minutes() -> None:
    rollout = live()
    serve(rollout, range(120), 0.6)
    assert stepped(rollout, 120) == (ON, "")
    serve(rollout, range(120, 123), 0.0)
    after, kind = stepped(rollout, 123)
    assert (after.phase, kind) == ("rolled_back", "rolled_back")
    assert stopped_runs(ON, after) == ("code@1#1",)


def test_only_harm_that_the_holdout_does_not_share_counts() -> None:
    rollout = live()
    serve(rollout, range(20), 0.6, error=0.9)
    [event] = step(rollout.state, rollout.all_evidence(1200.0), 1200.0, SETTINGS)[1]
    assert event.reason == "errors"
    rollout = live()
    for second in range(1200):
        rollout.observe(rollout.assign(f"r{second}"), {"error": 1.0}, now=float(second))
    assert stepped(rollout, 20)[1] == ""


@pytest.mark.parametrize(("on_harm", "phase", "run"), [("plain", "rolled_back", 1), ("last_stage", "running", 2)])
def test_the_policy_says_where_harm_leads(on_harm: OnHarm, phase: str, run: int) -> None:
    rollout = live(replace(SETTINGS, on_harm=on_harm))
    serve(rollout, range(3), 0.0)
    after, _ = stepped(rollout, 3)
    assert (after.phase, after.stage, after.run) == (phase, 1, run)
    assert stopped_runs(ON, after) == ("code@1#1",), "requests in flight stop drafting either way"
    rollout.take(after)
    assert rollout.all_evidence(200.0).num_canary == 0


def test_the_last_stage_is_judged_again_and_may_lead_on_again() -> None:
    settings = replace(SETTINGS, on_harm="last_stage")
    rollout = live(settings)
    serve(rollout, range(3), 0.0)
    rollout.take(stepped(rollout, 3)[0])
    serve(rollout, range(3, 10), 0.6)
    assert stepped(rollout, 10)[0].phase == "on"
    rollout = live(settings)
    serve(rollout, range(3), 0.0)
    rollout.take(stepped(rollout, 3)[0])
    serve(rollout, range(3, 6), 0.0)
    assert stepped(rollout, 6)[0].phase == "rolled_back"


def test_without_a_holdout_limits_go_on() -> None:
    rollout = live(replace(SETTINGS, holdout=0.0))
    serve(rollout, range(60), 0.6, error=1.0)
    assert stepped(rollout, 60)[1] == ""
    serve(rollout, range(60, 63), 0.0)
    assert stepped(rollout, 63)[1] == "rolled_back"


def test_times_are_referred_to_what_the_control_showed_before() -> None:
    rollout = live(state=replace(ON, phase="running"))
    serve(rollout, range(10), 0.6)
    evidence = rollout.all_evidence(600.0)
    after, _ = step_with_references(rollout.state, evidence, rollout.histories, 600.0, SETTINGS)
    assert after.phase == "on"
    assert after.references["errors"] == 0.0


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    made = Server(tmp_path)
    yield made
    await made.close()


async def until_rolled_back(server: Server) -> int:
    for second in range(300):
        await server.ask(1)
        await server.go_on(1.0)
        if server.state.phase == "rolled_back":
            return second + 1
    raise AssertionError("no alarm within five minutes")


async def test_a_head_that_is_damaged_after_on_is_rolled_back_at_a_request_a_second(server: Server) -> None:
    await server.go_on()
    await server.until("on", 2)
    await server.ask(60)
    server.damaged = True
    assert await until_rolled_back(server) <= 120
    event = (await server.rollouts.events(server.state.rollout_id))[-1]
    assert (event.kind, event.reason) == ("rolled_back", "taken")
    assert event.judgement is not None
    server.arms.clear()
    await server.ask(30)
    assert {mode for _, mode in server.arms} == {"off"}


async def test_an_edit_of_where_harm_leads_holds_for_rollouts_that_are_on(server: Server) -> None:
    await server.go_on()
    await server.until("on", 2)
    await server.ask(60)
    server.rollouts.adopt(parse_policy(POLICY.replace("GATE", "automatic, on_harm: last_stage"), "edited")[0])
    server.damaged = True
    for _ in range(120):
        await server.ask(1)
        await server.go_on(1.0)
        if server.state.phase != "on":
            break
    assert server.changes[-1][0] == "set_back"


async def test_a_damaged_head_that_is_hardly_asked_is_probed_and_rolled_back(server: Server) -> None:
    """Its drafts do not pay, so all sequences pause: what shows the damage are probes."""
    await server.go_on()
    await server.until("on", 2)
    await server.ask(60)
    engine = server.client.engine
    engine.speculation = Speculation(
        engine.speculation.proposers, max_step_tokens=64, max_model_len=256, payback=Told(), clock=lambda: server.now
    )
    server.client.send(ApplyPlan(SpecPlan()))
    server.damaged = True
    assert 60 <= await until_rolled_back(server) <= 250
    event = (await server.rollouts.events(server.state.rollout_id))[-1]
    assert (event.kind, event.reason) == ("rolled_back", "taken")


async def test_a_restart_keeps_the_window(server: Server, tmp_path: Path) -> None:
    await server.go_on()
    await server.until("on", 2)
    await server.ask(20)
    [before] = await server.rollouts.views()
    assert before.judgement is not None
    assert before.num_canary > 0
    await server.rollouts.close()
    again = Server(tmp_path, database=server.database, now=server.now)
    await again.go_on()
    [after] = await again.rollouts.views()
    assert (after.phase, after.num_canary) == ("on", before.num_canary)
    await again.close()


def test_changing_on_harm_keeps_the_rollout() -> None:
    plain = parse_policy(POLICY.replace("GATE", "manual"), "p")[0]
    other = parse_policy(POLICY.replace("GATE", "manual, on_harm: last_stage"), "p")[0]
    before, after = targets_of(plain, "m")["code"], targets_of(other, "m")["code"]
    assert before.rollout_id == after.rollout_id
    assert after.settings.on_harm == "last_stage"
