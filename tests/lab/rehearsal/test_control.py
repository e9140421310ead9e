"""Rollouts, breakers, drift and flags act in a rehearsal, on its clock."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from prolepsis.control.policy.check import NOTHING_KNOWN, usable_policy
from prolepsis.control.policy.model import Policy
from prolepsis.core.config import ServerConfig
from prolepsis.core.recorded_draft import RecordedDraft
from prolepsis.lab.rehearsal.control import with_approval
from prolepsis.lab.rehearsal.rehearsal import Rehearsal, RehearsedRequest, RehearsedServer, rehearse
from prolepsis.lab.rehearsal.trace import Trace, TraceLine
from tests.lab.rehearsal.test_rehearsal import MACHINE, line

RULE = """
rules:
  - name: code
    match: {route: /v1/completions}
    mode: "on"
    rollout: {stages: WEIGHTS, holdout: 10, gate: GATE, min_samples: 5, min_stage_s: 30, max_stage_s: 600}
    guardrails: [GUARDRAIL]
"""
ERRORS = "{name: errors, metric: error_rate, limit: 0.8}"
TAKEN = "{name: taken, metric: acceptance_rate, limit: 0.4}"


def rolled_out(guardrail: str = ERRORS, *, weights: str = "[50]", gate: str = "automatic") -> Policy:
    text = RULE.replace("GUARDRAIL", guardrail).replace("WEIGHTS", weights).replace("GATE", gate)
    return usable_policy(text, "policy", NOTHING_KNOWN)


def everywhere(mode: str = "on") -> Policy:
    return usable_policy(f'default: {{mode: "{mode}"}}', "policy", NOTHING_KNOWN)


def useless(drafts: Sequence[RecordedDraft]) -> tuple[RecordedDraft, ...]:
    return tuple(one._replace(path=()) for one in drafts)


def traffic(number: int, *, every_s: float = 0.5, output: int = 9, useless_from: int | None = None) -> Trace:
    """Return requests with right drafts, and from a number on with drafts whose tokens are all wrong."""
    lines = []
    for i in range(number):
        one = replace(line(every_s * i, output=output), route="/v1/completions")
        if useless_from is not None and i >= useless_from:
            one = replace(one, drafts={"suffix": useless(one.drafts["suffix"])})
        lines.append(one)
    return Trace(lines=tuple(lines))


def played(trace: Trace, policy: Policy) -> Rehearsal:
    return rehearse(trace, RehearsedServer(machine=MACHINE, policy=policy))


def of(rehearsal: Rehearsal, area: str) -> list[tuple[str, float]]:
    """Return what an area of control did, and when."""
    return [(one.what, one.at) for one in rehearsal.changes if one.what.startswith(f"{area}.")]


def share_speculating(outcomes: Sequence[RehearsedRequest]) -> float:
    return sum(one.stats.num_drafts > 0 for one in outcomes) / len(outcomes)


@pytest.mark.parametrize("gate", ["automatic", "manual"])
def test_a_stage_begins_when_it_would_on_a_server(gate: str) -> None:
    rehearsal = played(traffic(180), rolled_out(weights="[20, 60]", gate=gate))
    events = of(rehearsal, "rollout")
    assert [what for what, _ in events] == ["rollout.started", "rollout.promoted", "rollout.completed"]
    started, promoted, completed = (at for _, at in events)
    assert started == 0.0
    assert promoted == pytest.approx(30.5, abs=0.6), "the least time of a stage, and its next tick"
    assert completed - promoted == pytest.approx(30.5, abs=0.6)
    first, second, on = (rehearsal.outcomes[start : start + 55] for start in (0, 64, 125))
    assert 0.05 < share_speculating(first) < 0.4 < share_speculating(second) < 0.8 < share_speculating(on)


def test_bad_drafts_roll_back_and_plain_decoding_takes_over() -> None:
    """In shadow they are right, on the canary no longer."""
    rehearsal = played(traffic(240, useless_from=120), rolled_out(TAKEN))
    events = of(rehearsal, "rollout")
    assert [what for what, _ in events][-1] == "rollout.rolled_back"
    assert "taken" in rehearsal.changes[-1].why
    back_at = events[-1][1]
    assert back_at > 60.0
    after = [one for one in rehearsal.outcomes if one.line.at > back_at]
    assert after
    assert {one.stats.mode.reason for one in after} == {"rolled_back"}
    assert share_speculating(after) == 0.0


def test_useless_drafts_open_a_breaker_which_probes_and_closes_when_they_are_right() -> None:
    rehearsal = played(traffic(80, output=41, useless_from=0), everywhere())
    [(opened, at), *later] = of(rehearsal, "breaker")
    assert opened == "breaker.open"
    assert later[0][0] == "breaker.half_open"
    assert later[0][1] == pytest.approx(at + 10.0, abs=0.3)
    between = [one for one in rehearsal.outcomes if at < one.line.at < at + 9.0]
    assert {one.stats.mode.reason for one in between} == {"breaker_open"}

    lines = traffic(80, output=41).lines
    bad = tuple(replace(one, drafts={"suffix": useless(one.drafts["suffix"])}) if one.at < at else one for one in lines)
    mended = of(played(Trace(lines=bad), everywhere()), "breaker")
    assert [what for what, _ in mended] == ["breaker.open", "breaker.half_open", "breaker.closed"]


def test_a_sudden_fall_of_acceptance_is_an_alarm() -> None:
    rehearsal = played(traffic(200, output=17, useless_from=150), everywhere())
    kinds = of(rehearsal, "drift")
    assert kinds[0][0] == "drift.cliff"
    assert 75.0 < kinds[0][1] < 100.0


def test_a_flag_turns_speculation_off(tmp_path: Path) -> None:
    flags = tmp_path / "flags.json"
    enabled = {"state": "ENABLED", "variants": {"yes": True, "no": False}, "defaultVariant": "no"}
    flags.write_text(json.dumps({"flags": {"speculation.enabled": enabled}}))
    setting = RehearsedServer(machine=MACHINE, policy=everywhere(), server=ServerConfig(flags=flags))
    assert {one.stats.mode.reason for one in rehearse(traffic(3), setting).outcomes} == {"flag_off"}


def test_a_trace_begins_on_a_monday_at_midnight() -> None:
    text = 'rules: [{name: early, match: {time: {days: mon, hours: "00:00-00:01"}}, mode: "on"}]'
    rehearsal = played(traffic(4, every_s=25.0), usable_policy(text, "policy", NOTHING_KNOWN))
    assert [one.stats.num_drafts > 0 for one in rehearsal.outcomes] == [True, True, True, False]


def test_the_controls_of_this_machine_do_not_act(tmp_path: Path) -> None:
    controls = tmp_path / "controls.json"
    controls.write_text("damaged: a server stops everything")
    setting = RehearsedServer(machine=MACHINE, policy=everywhere(), server=ServerConfig(controls_file=controls))
    assert share_speculating(rehearse(traffic(3), setting).outcomes) == 1.0
    assert controls.read_text().startswith("damaged")


def test_one_seed_gives_one_rehearsal() -> None:
    trace, policy = traffic(50, useless_from=30), rolled_out(TAKEN)
    machine = replace(MACHINE, scatter=((0.9, 1.0, 1.3),) * 5)

    def once(seed: int) -> Rehearsal:
        return rehearse(trace, RehearsedServer(machine=machine, policy=policy, seed=seed))

    first = once(1)
    assert first.changes
    assert once(1) == first != once(2)


def test_without_a_policy_or_speculation_nothing_is_controlled() -> None:
    trace = traffic(4)
    plain = rehearse(trace, RehearsedServer(machine=MACHINE, policy=rolled_out(), mode="off"))
    alone = rehearse(trace, RehearsedServer(machine=MACHINE))
    assert not plain.changes
    assert not alone.changes
    assert share_speculating(plain.outcomes) == 0.0
    assert share_speculating(alone.outcomes) == 1.0


def test_a_request_that_its_deadline_ends_is_an_error() -> None:
    server = ServerConfig(request_timeout_s=0.2)
    slow = Trace(lines=(TraceLine(at=0.0, prompt=8, output=100),))
    [outcome] = rehearse(slow, RehearsedServer(machine=MACHINE, policy=everywhere(), server=server)).outcomes
    assert outcome.error == "deadline_exceeded"
    assert outcome.total_s is None


def test_an_approved_policy_differs_in_its_gates_only() -> None:
    given = rolled_out(gate="manual")
    approved = with_approval(given)
    assert approved != given
    assert approved.content() == rolled_out(gate="automatic").content()
    assert with_approval(everywhere()) == everywhere()
