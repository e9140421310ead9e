"""What latency targets bring in a rehearsed closed loop: 16 requests at once, of which every fourth has a target."""

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from prolepsis.control.policy.check import NOTHING_KNOWN, usable_policy
from prolepsis.core.recorded_draft import RecordedDraft
from prolepsis.core.requests import LatencyTarget
from prolepsis.lab.measure.arrivals import LatencyGoal
from prolepsis.lab.rehearsal.rehearsal import Rehearsal, RehearsedServer, rehearse
from prolepsis.lab.rehearsal.trace import Trace, TraceLine
from prolepsis.lab.virtual_engine.machine import ProposerCost
from prolepsis.lab.virtual_engine.roofline import shipped

_DEPTH, _RIGHT = 8, 0.7
_ROOFLINE = shipped()["h100-llama-7b-fp8"].machine()
_HEAD: dict[str, ProposerCost] = {"draft_head": _ROOFLINE.proposers["draft_head"]}
MACHINE = replace(_ROOFLINE, step_ms=0.5, proposers=_HEAD, engine=replace(_ROOFLINE.engine, chunk_limit_ms=40.0))
SERVER = RehearsedServer(machine=MACHINE)


def line(number: int, chance: random.Random) -> TraceLine:
    """Return a request of which each token is one that drafts have right, or one that they have not."""
    prompt, output = chance.randint(32, 64), chance.randint(100, 200)
    is_right = [chance.random() < _RIGHT for _ in range(output)] + [False]
    survival, made = tuple(_RIGHT**depth for depth in range(1, _DEPTH + 1)), list[RecordedDraft]()
    for at in range(1, output):
        path = tuple(range(min(_DEPTH, is_right.index(False, at) - at)))
        nodes = tuple(range(_DEPTH))
        made.append(RecordedDraft(0, at, _DEPTH, nodes, (-1, *nodes[:-1]), survival, (0,) * _DEPTH, path))
    blocks = tuple(range(100 * number, 100 * number + (prompt + output) // 16 + 1))
    return TraceLine(at=0.0, prompt=prompt, output=output, blocks=blocks, drafts={"draft_head": tuple(made)})


def trace(number: int, seed: int = 0) -> Trace:
    chance = random.Random(seed)
    return Trace(lines=tuple(line(i, chance) for i in range(number)), at_once=16)


def with_targets(without: Trace, targets_ms: Sequence[float]) -> Trace:
    """Return the trace with targets for every fourth request."""
    given = iter(targets_ms)
    lines = [
        replace(one, target=LatencyTarget(next(given))) if i % 4 == 0 else one for i, one in enumerate(without.lines)
    ]
    return replace(without, lines=tuple(lines))


def pace_of_others(rehearsal: Rehearsal) -> float:
    """Return the tokens a second of the requests without a target."""
    return sum(one.line.output for i, one in enumerate(rehearsal.outcomes) if i % 4) / rehearsal.seconds


def test_targets_of_one_and_a_half_times_the_time_alone_are_met_and_others_keep_their_pace() -> None:
    """90 % against 50 %, at 95 % of the pace."""
    without = trace(64, seed=2)
    alone = rehearse(replace(without, lines=without.lines[::4], at_once=1), SERVER)
    targets = [1500.0 * (one.per_token_s or 0.0) for one in alone.outcomes]
    before, after = (rehearse(given, SERVER) for given in (without, with_targets(without, targets)))
    kept = [
        sum(1000.0 * (one.per_token_s or 0.0) <= most for one, most in zip(run.outcomes[::4], targets, strict=True))
        for run in (before, after)
    ]
    assert kept[0] <= 0.5 * len(targets)
    assert kept[1] >= 0.9 * len(targets)
    assert pace_of_others(after) >= 0.95 * pace_of_others(before)


def test_targets_that_no_machine_can_keep_change_nothing() -> None:
    without = trace(24)
    before, after = (rehearse(given, SERVER) for given in (without, with_targets(without, [1e-5] * 6)))
    assert [one.total_s for one in after.outcomes] == [one.total_s for one in before.outcomes]


def test_a_rule_gives_a_target_by_which_its_requests_are_judged() -> None:
    text = 'version: "1"\ndefault: {mode: "on", target: {ms_per_token: 0.001}}\n'
    policy = usable_policy(text, "policy", NOTHING_KNOWN)
    [judged] = rehearse(trace(1), replace(SERVER, policy=policy)).outcomes
    [free] = rehearse(trace(1), SERVER).outcomes
    assert (judged.keeps(LatencyGoal()), free.keeps(LatencyGoal())) == (False, True)


@pytest.mark.parametrize(
    ("target", "goal"),
    [
        (None, LatencyGoal(first_token_s=2.0, per_token_s=0.1)),
        (LatencyTarget(20.0), LatencyGoal(first_token_s=2.0, per_token_s=0.02)),
        (LatencyTarget(first_token_ms=500.0), LatencyGoal(first_token_s=0.5, per_token_s=0.1)),
    ],
)
def test_a_target_stands_for_the_goal(target: LatencyTarget | None, goal: LatencyGoal) -> None:
    assert LatencyGoal(first_token_s=2.0, per_token_s=0.1).of(target) == goal
