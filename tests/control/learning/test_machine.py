"""A run of learning, step by step: every event in every phase, and what holds in whatever order they come."""

from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prolepsis.control.learning.machine import (
    SETTLE_S,
    Ended,
    Evaluated,
    LearningEvent,
    RolloutSeen,
    Taken,
    champion_of,
    in_place,
    shadow_limit,
    step,
)
from prolepsis.core.learning import HeadLineage, LearningRun, Outcome, Phase

NOW = 1_000_000.0
RUNNING = LearningRun(version=7, run_id="code-1", rule="code", target="t", head="code@2", since=NOW - SETTLE_S)
EVENTS: dict[str, LearningEvent] = {
    "due": LearningRun(rule="code", trigger="drift", target="t"),
    "taken": Taken("gpu-1", NOW + 300.0),
    "passed": Evaluated("code@2"),
    "failed": Evaluated("", "own text"),
    "running": RolloutSeen("running"),
    "on": RolloutSeen("on"),
    "harm": Ended("rolled_back", "gain"),
    "forgotten": Ended("forgotten", "tenant forgotten"),
    "stopped": Ended("stopped", "by ann"),
}
LEADS: dict[tuple[str, str], tuple[Phase, Outcome | None]] = {
    ("ended", "due"): ("due", None),
    ("due", "taken"): ("training", None),
    ("due", "harm"): ("ended", "rolled_back"),
    ("due", "forgotten"): ("ended", "forgotten"),
    ("due", "stopped"): ("ended", "stopped"),
    ("training", "taken"): ("training", None),
    ("training", "passed"): ("trial", None),
    ("training", "failed"): ("ended", "rejected"),
    ("training", "harm"): ("ended", "rolled_back"),
    ("training", "forgotten"): ("ended", "forgotten"),
    ("training", "stopped"): ("ended", "stopped"),
    ("trial", "on"): ("settling", None),
    ("trial", "harm"): ("ended", "rolled_back"),
    ("trial", "forgotten"): ("ended", "forgotten"),
    ("trial", "stopped"): ("ended", "stopped"),
    ("settling", "on"): ("ended", "promoted"),
    ("settling", "running"): ("trial", None),
    ("settling", "harm"): ("ended", "rolled_back"),
    ("settling", "forgotten"): ("ended", "forgotten"),
    ("settling", "stopped"): ("ended", "stopped"),
}
"""Where an event leads; from a phase that a pair lacks it leads nowhere."""


@pytest.mark.parametrize("phase", get_args(Phase))
@pytest.mark.parametrize("event", EVENTS)
def test_each_event_leads_on_from_the_phases_where_it_has_a_place(phase: Phase, event: str) -> None:
    run = replace(RUNNING, phase=phase, outcome="rejected" if phase == "ended" else None)
    after, decides = step(run, EVENTS[event], NOW)
    if (phase, event) not in LEADS:
        assert (after, decides) == (run, False)
        return
    assert (after.phase, after.outcome) == LEADS[phase, event]
    assert after.version == 7
    assert decides == (after.phase == "ended")
    assert after.since == (run.since if (phase, event) == ("training", "taken") else NOW)


def test_a_promoted_head_that_is_retired_later_was_rolled_back() -> None:
    run = replace(RUNNING, phase="ended", outcome="promoted")
    assert step(run, EVENTS["harm"], NOW)[0].outcome == "rolled_back"
    assert step(run, EVENTS["forgotten"], NOW)[0].outcome == "forgotten"
    assert step(step(run, EVENTS["harm"], NOW)[0], EVENTS["forgotten"], NOW)[0].outcome == "rolled_back"
    assert step(run, EVENTS["stopped"], NOW) == (run, False)


def test_a_candidate_settles_for_a_day_before_it_is_promoted() -> None:
    run = replace(RUNNING, phase="settling")
    assert step(run, EVENTS["on"], NOW - 1.0) == (run, False)
    after, decides = step(run, EVENTS["on"], NOW)
    assert (after.outcome, after.head, decides) == ("promoted", "code@2", True)


def test_a_run_that_ends_before_it_has_a_head_decides_about_none() -> None:
    assert not step(replace(RUNNING, phase="training", head=""), EVENTS["stopped"], NOW)[1]


def test_a_living_lease_keeps_others_out_and_its_holder_renews_it() -> None:
    run, _ = step(replace(RUNNING, phase="due", head=""), Taken("gpu-1", NOW + 300.0), NOW)
    assert step(run, Taken("gpu-2", NOW + 500.0), NOW + 299.0) == (run, False)
    assert step(run, Taken("gpu-1", NOW + 500.0), NOW + 299.0)[0].leased_until == NOW + 500.0
    taken, _ = step(run, Taken("gpu-2", NOW + 900.0), NOW + 300.0)
    assert (taken.run_id, taken.holder, taken.since) == (run.run_id, "gpu-2", run.since)
    tried, _ = step(taken, Evaluated("code@2"), NOW + 400.0)
    assert (tried.holder, tried.leased_until) == ("", 0.0)


def lineage(rule: str = "code", *, promoted_at: float = 0.0, retired: str = "", touched: str = "") -> HeadLineage:
    return HeadLineage(
        rule=rule,
        parent="",
        manifests=(),
        serves=(),
        sha256="",
        made_at=0.0,
        promoted_at=promoted_at,
        retired=retired,
        touched=touched,
        evaluation={"first": [0.4, 0.5]},
    )


def test_the_head_that_was_promoted_last_and_may_draft_is_the_champion() -> None:
    heads = {
        "code@1": lineage(promoted_at=1.0),
        "code@2": lineage(promoted_at=3.0, retired="harm"),
        "code@3": lineage(promoted_at=2.0, touched="acme"),
        "chat@1": lineage("chat", promoted_at=9.0),
        "code@4": lineage(),
    }
    assert champion_of(heads, ["code"]) == "code@3"
    assert champion_of(heads, ["code"], to_learn_from=True) == "code@1"
    assert champion_of(heads, ["code", "chat"]) == "chat@1"
    assert champion_of(heads, []) == ""


def test_a_candidate_is_in_place_while_it_is_tried_and_not_retired() -> None:
    for phase in get_args(Phase):
        run = replace(RUNNING, phase=phase)
        expected = "code@2" if phase in ("trial", "settling") else ""
        assert in_place(run, {"code@2": lineage()}, ["code"]).candidate == expected
        assert in_place(run, {"code@2": lineage(retired="harm")}, ["code"]).candidate == ""
        assert in_place(run, {"code@2": lineage()}, ["chat"]).candidate == ""


def test_the_limit_in_shadow_is_what_damage_does_not_reach() -> None:
    assert shadow_limit(lineage()) == pytest.approx(0.1 * 0.996, rel=1e-3)
    assert shadow_limit(replace(lineage(), evaluation={})) == 0.02
    assert 0.0 < shadow_limit(replace(lineage(), evaluation={"first": [1.0, 1.0]})) < 1.0


@given(st.lists(st.tuples(st.sampled_from(sorted(EVENTS)), st.floats(0.0, 2 * SETTLE_S), st.booleans()), max_size=40))
def test_in_any_order_no_retired_head_drafts_and_none_in_two_slots(events: list[tuple[str, float, bool]]) -> None:
    """`is_killed`: the server that saw an event carried its acts out and was killed before it stored the run."""
    run, heads, now, made = LearningRun(), dict[str, HeadLineage](), NOW, 0
    for name, seconds, is_killed in events:
        now += seconds
        event = EVENTS[name]
        if isinstance(event, Evaluated) and event.head and run.phase == "training":
            made += 1
            event = Evaluated(f"code@{made}")
            heads[event.head] = lineage()
        if event in (EVENTS["harm"], EVENTS["forgotten"]) and run.phase in ("due", "training"):
            continue  # nothing drafts that could do harm
        before = run
        run, decides = step(run, event, now)
        if decides:
            head = heads[run.head]
            promotes = run.outcome == "promoted"
            heads[run.head] = replace(head, promoted_at=now) if promotes else replace(head, retired="by the run")
        run = before if is_killed and decides else run
        placed = in_place(run, heads, ["code"])
        drafting = [head for head in (placed.candidate, placed.champion) if head]
        assert len(drafting) == len({*drafting})
        assert not any(heads[head].retired for head in drafting)
        assert (run.phase == "ended") == (run.outcome is not None or not run.run_id)
        if before.phase in ("trial", "settling") and run.phase == "ended" and run.outcome != "promoted":
            assert heads[before.head].retired


@given(st.lists(st.sampled_from(sorted(EVENTS)), min_size=1, max_size=6))
def test_a_run_ends_in_finitely_many_steps_whatever_its_rollout_does(seen: list[str]) -> None:
    """Each phase but settling, which harm may set back, leads on only; a rollout ends in a bounded time itself."""
    order = {"due": 0, "training": 1, "trial": 2, "settling": 3, "ended": 4}
    run = LearningRun()
    for name in ["due", "taken", "passed", *seen]:
        before, (run, _) = run, step(run, EVENTS[name], NOW)
        set_back = (before.phase, run.phase) in (("settling", "trial"), ("ended", "due"))
        assert set_back or order[run.phase] >= order[before.phase]
