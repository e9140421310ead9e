"""The chain while serving: from a run that is due to a promotion, and every way back."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from prolepsis.control.learning.following import IDLE_S, Stored
from prolepsis.control.learning.machine import SETTLE_S, Ended
from prolepsis.control.learning.runtime import AGAIN_S, GIVEN_UP_S, LOOK_S, MOST_STARTS, PAUSE_S, WATCHED_S
from prolepsis.control.store.examples import ExampleItem
from prolepsis.control.store.lineage import forget
from prolepsis.core.config import CANDIDATE_HEAD, DRAFT_HEAD, LEARNT_HEAD
from prolepsis.core.learning import Example
from tests.control.learning.chain import IDLE, POLICY, Server, Sites


@pytest.fixture
def sites(tmp_path: Path) -> Sites:
    return Sites(tmp_path)


def keep_examples(sites: Sites, *, length: int, first: int = 0, tokenizer: str = "t") -> None:
    examples = [
        Example(
            example_id=f"{first + i:032}",
            tokenizer=tokenizer,
            rule="code",
            tenant="acme",
            traffic_class="chat-completions/none/free/short/code",
            at=sites.clock.now - i / 10,
            prompt=(1,) * length,
            answer=(2,),
            greedy=True,
        )
        for i in range(3)
    ]
    items = [ExampleItem(lambda e=e: e, "acme", e.at, lambda outcome: None) for e in examples]  # type: ignore[misc]
    with sites.database.write() as connection:
        ExampleItem.write(connection, items)


async def begun(sites: Sites, server: Server) -> None:
    """Let a run be due by hand."""
    assert await server.learning.begin(await server.learning.read(), "code", "hand", "a test")


async def tried(sites: Sites, *servers: Server, label: str = "code@1") -> None:
    """Let a candidate be in place on all servers, with its rollout begun."""
    await begun(sites, servers[0])
    sites.train(label)
    for _ in range(2):
        for server in servers:
            await server.tick()


async def promoted(sites: Sites, *servers: Server, label: str = "code@1") -> None:
    await tried(sites, *servers, label=label)
    await sites.pass_stages(servers[0])
    for server in servers:
        await server.tick()
    assert sites.run.phase == "settling"
    sites.clock.now += SETTLE_S
    for _ in range(2):
        for server in servers:
            await server.tick()


async def test_a_head_that_wins_its_trial_is_promoted_on_every_server(sites: Sites) -> None:
    first, second = Server(sites), Server(sites)
    await tried(sites, first, second)
    assert sites.run.phase == "trial"
    for server in (first, second):
        assert server.slots == {CANDIDATE_HEAD: "code@1"}
        assert server.proposers is not None
        assert server.proposers[0] == CANDIDATE_HEAD
        assert server.folder.aliases == {"candidate": "code@1"}
    await promoted_after(sites, first, second)
    assert (sites.run.phase, sites.run.outcome) == ("ended", "promoted")
    for server in (first, second):
        assert server.slots == {LEARNT_HEAD: "code@1"}
        assert server.proposers is not None
        assert server.proposers[0] == LEARNT_HEAD
        assert server.folder.aliases["champion"] == "code@1"
    assert sites.acts == ["learning.due", "learning.trial", "learning.promoted"]


async def promoted_after(sites: Sites, *servers: Server) -> None:
    await sites.pass_stages(servers[0])
    for server in servers:
        await server.tick()
    sites.clock.now += SETTLE_S
    for _ in range(2):
        for server in servers:
            await server.tick()


async def test_the_next_candidate_is_compared_with_the_champion(sites: Sites) -> None:
    server = Server(sites)
    await promoted(sites, server)
    await tried(sites, server, label="code@2")
    assert sites.run.parent == "code@1"
    assert server.slots == {LEARNT_HEAD: "code@1", CANDIDATE_HEAD: "code@2"}
    rollout = server.policies.terms["code"].rollout
    assert rollout is not None
    assert rollout.against is not None
    assert (rollout.against.proposers or ())[0] == LEARNT_HEAD
    await promoted_after(sites, server)
    assert server.slots == {LEARNT_HEAD: "code@2"}
    await server.learning.retire("code@2", "it is worse after all")  # the way back: the head before
    await server.tick()
    assert server.slots == {LEARNT_HEAD: "code@1"}
    assert sites.run.outcome == "rolled_back"


async def test_harm_in_the_trial_takes_the_candidate_out_of_every_server(sites: Sites) -> None:
    first, second = Server(sites), Server(sites)
    await tried(sites, first, second)
    state = first.rollouts.state("code")
    assert state is not None
    await first.rollouts.command(state.rollout_id, "rollback", "slower", by="ann")
    for server in (first, second):
        await server.tick()
        assert server.slots == {}
        assert server.proposers is None
        assert server.client.installed == []
    assert (sites.run.outcome, "slower" in sites.run.reason) == ("rolled_back", True)
    assert sites.lineage.heads()["code@1"].retired == sites.run.reason
    assert sites.acts == ["learning.due", "learning.trial", "learning.rolled_back"]


async def test_harm_while_it_settles_does_so_too(sites: Sites) -> None:
    server = Server(sites)
    await tried(sites, server)
    await sites.pass_stages(server)
    await server.tick()
    state = server.rollouts.state("code")
    assert state is not None
    await server.rollouts.command(state.rollout_id, "rollback", "slower", by="ann")
    await server.tick()
    assert (sites.run.outcome, server.slots) == ("rolled_back", {})


@pytest.mark.parametrize(("judge", "says"), [("drift", "cliff"), ("benefit", "gone")])
async def test_a_promoted_head_that_harms_within_a_week_leaves(sites: Sites, judge: Any, says: str) -> None:
    server = Server(sites)
    await promoted(sites, server)
    server.against = [((LEARNT_HEAD, "chat-completions/none/free/short/other"), judge, says)]
    await server.tick()
    assert not sites.lineage.heads()["code@1"].retired  # another rule's traffic
    server.against = [((LEARNT_HEAD, "chat-completions/none/free/short/code"), judge, says)]
    await server.tick()
    await server.tick()
    assert server.slots == {}
    assert sites.run.outcome == "rolled_back"
    assert [event.action for event in sites.events].count("head.retired") == 1


async def test_later_harm_is_the_drift_of_any_head(sites: Sites) -> None:
    server = Server(sites)
    await promoted(sites, server)
    sites.clock.now += WATCHED_S + 1.0
    server.against = [((LEARNT_HEAD, "chat-completions/none/free/short/code"), "drift", "cliff")]
    await server.tick()
    assert not sites.lineage.heads()["code@1"].retired


async def test_nobody_learns_from_a_head_that_waits_for_the_next_promotion_to_leave(sites: Sites) -> None:
    server = Server(sites)
    await promoted(sites, server)
    assert forget(sites.database, tenant="acme", later=["code"]).touched == ("code@1",)
    await tried(sites, server, label="code@2")
    assert (sites.run.parent, server.slots[LEARNT_HEAD]) == ("", "code@1")


@pytest.mark.parametrize("phase", ["due", "trial", "settling", "ended"])
async def test_forgetting_takes_heads_out_within_a_tick_in_each_phase(sites: Sites, phase: str) -> None:
    server = Server(sites)
    if phase == "due":
        await promoted(sites, server)
        await begun(sites, server)
    elif phase == "ended":
        await promoted(sites, server)
    else:
        await tried(sites, server)
        if phase == "settling":
            await sites.pass_stages(server)
            await server.tick()
    assert sites.run.phase == phase
    assert forget(sites.database, tenant="acme").retired == ("code@1",)
    await server.tick()
    assert server.slots == {}
    assert server.client.installed == []
    if phase != "due":
        assert (sites.run.phase, sites.run.outcome) == ("ended", "forgotten")


async def test_a_retired_head_leaves_the_slot_that_an_operator_gave_it(sites: Sites) -> None:
    server = Server(sites)
    sites.head("code@1", retired="tenant forgotten")
    for slot in (DRAFT_HEAD, CANDIDATE_HEAD):
        await server.client.swap_head("code@1", slot)
    server.folder.install("auto@1", b"", "")
    await server.tick()
    assert "code@1" not in server.slots.values()


async def test_a_server_that_comes_late_or_was_killed_follows_the_store(sites: Sites) -> None:
    """At each moment another server takes over from one that does nothing any more."""
    await begun(sites, Server(sites))
    sites.train("code@1")
    for _ in range(2):
        server = Server(sites)
        await server.tick()
        await server.tick()
        assert server.slots == {CANDIDATE_HEAD: "code@1"}
    await sites.pass_stages(server)
    await Server(sites).tick()
    server = Server(sites)
    for _ in range(3):
        await server.tick()
    assert sites.run.phase == "settling"
    sites.clock.now += SETTLE_S
    sites.lineage.promoted("code@1")  # it was killed between the act and its note
    late = Server(sites)
    for _ in range(3):
        await late.tick()
    assert (sites.run.outcome, late.slots) == ("promoted", {LEARNT_HEAD: "code@1"})


async def test_of_two_servers_that_see_the_same_one_changes_the_run(sites: Sites) -> None:
    first, second = Server(sites), Server(sites)
    await tried(sites, first, second)
    await sites.pass_stages(first)
    await second.rollouts.tick()
    await asyncio.gather(first.learning.tick(), second.learning.tick())
    assert sites.run.phase == "settling"
    version = sites.run.version
    await asyncio.gather(first.learning.tick(), second.learning.tick())
    assert sites.run.version == version


async def test_a_server_of_another_target_leaves_the_run_alone_until_none_has_its_target(sites: Sites) -> None:
    await begun(sites, Server(sites))
    sites.train("code@1")
    other = Server(sites, weights="bb00")
    for _ in range(2):
        sites.clock.now += 2 * GIVEN_UP_S
        await other.tick()
    assert (sites.run.phase, other.slots) == ("trial", {})
    sites.targets = ["bb00"]
    await other.tick()
    sites.clock.now += GIVEN_UP_S + 1.0
    await other.tick()
    assert (sites.run.outcome, sites.run.reason) == ("failed", "no server has its target")
    await begun(sites, Server(sites))
    await other.tick()
    assert sites.run.phase == "due"  # each run has an hour
    until = sites.clock.now + 3 * GIVEN_UP_S
    assert sites.runs.swap(replace(sites.run, phase="training", holder="gpu 1", leased_until=until))
    sites.clock.now += GIVEN_UP_S + 1.0
    await other.tick()
    assert (sites.run.phase, sites.run.outcome) == ("training", None)  # a process trains


async def test_a_head_that_cannot_be_loaded_ends_its_run_and_is_not_tried_again(sites: Sites) -> None:
    server = Server(sites)
    await begun(sites, server)
    sites.train("huge@1")
    for _ in range(3):
        await server.tick()
    assert (sites.run.outcome, sites.run.reason) == ("failed", "huge@1 does not fit")
    assert (server.slots, server.proposers) == ({}, None)


async def test_a_candidate_waits_for_a_moment_without_requests_but_not_for_long(sites: Sites) -> None:
    server = Server(sites)
    await begun(sites, server)
    sites.train("code@1")
    server.client.reported = replace(IDLE, num_running=1)
    await server.tick()
    assert server.slots == {}
    sites.clock.now += IDLE_S + 1.0
    await server.tick()
    assert server.slots == {CANDIDATE_HEAD: "code@1"}


async def test_a_trial_waits_for_the_rules_own_rollout(sites: Sites) -> None:
    sites.policy.write_text(POLICY.replace("learning:", "rollout: {stages: [50], gate: manual}\n    learning:"))
    server = Server(sites)
    await tried(sites, server)
    own = server.rollouts.state("code")
    assert (own and own.phase, server.proposers) == ("off", None)
    await server.rollouts.command(own.rollout_id if own else "", "start", "a test")
    await sites.pass_stages(server)
    await server.tick()
    state = server.rollouts.state("code")
    assert state is not None
    assert own is not None
    assert state.rollout_id != own.rollout_id
    assert server.proposers is not None


async def test_a_rule_that_stops_learning_ends_its_run_and_serves_as_the_policy_says(sites: Sites) -> None:
    server = Server(sites)
    await promoted(sites, server)
    await tried(sites, server, label="code@2")
    sites.policy.write_text("rules: [{name: code, match: {tenant: acme}, mode: on}]")
    await server.tick()
    await server.tick()
    assert (sites.run.outcome, server.slots, server.proposers) == ("stopped", {}, None)


async def test_a_tenant_that_takes_its_consent_back_ends_a_run_that_would_read_its_examples(sites: Sites) -> None:
    all_agree = POLICY.replace("tenants: [acme]", "serves: all, min_tenants: 2, tenants: [acme, b, c]")
    sites.policy.write_text(all_agree)
    server = Server(sites)
    await begun(sites, server)
    sites.policy.write_text(all_agree.replace("[acme, b, c]", "[b, c]"))
    await server.tick()
    assert (sites.run.outcome, server.processes) == ("stopped", [])
    sites.policy.write_text(all_agree)
    await server.tick()
    await tried(sites, server)
    sites.policy.write_text(all_agree.replace("[acme, b, c]", "[b, c]"))
    await server.tick()
    assert sites.run.phase == "trial"  # what was learnt stays until it is forgotten


async def test_what_is_due_begins_once_for_all_servers_and_its_process_is_started_by_one(sites: Sites) -> None:
    first, second = Server(sites), Server(sites)
    await first.tick()
    assert not sites.run.run_id
    keep_examples(sites, length=100_000)
    sites.clock.now += LOOK_S
    await asyncio.gather(first.tick(), second.tick())
    assert (sites.run.phase, sites.run.trigger, sites.run.model) == ("due", "new_tokens", "tiny")
    await asyncio.gather(first.tick(), second.tick())
    assert len(first.processes) + len(second.processes) == 1
    await first.learning.close()
    await second.learning.close()
    assert [process.status for process in first.processes + second.processes] == [-15]


async def test_only_examples_after_the_last_data_set_that_the_tokenizer_reads_are_new(sites: Sites) -> None:
    server = Server(sites)
    keep_examples(sites, length=100_000)
    sites.head("code@1", retired="slower")
    sites.clock.now += LOOK_S
    await server.tick()
    assert sites.run.phase == "ended"
    keep_examples(sites, length=100_000, tokenizer="other")
    sites.clock.now += LOOK_S
    await server.tick()
    assert sites.run.phase == "ended"
    keep_examples(sites, length=100_001, first=3)
    sites.clock.now += LOOK_S
    await server.tick()
    assert (sites.run.trigger, sites.run.why) == ("new_tokens", "300,006 new tokens")


async def test_a_process_that_ends_again_and_again_ends_the_run(sites: Sites) -> None:
    server = Server(sites)
    await begun(sites, server)
    for number in range(1, MOST_STARTS + 1):
        await server.tick()
        await server.tick()
        assert len(server.processes) == number
        server.processes[-1].status = 1
        sites.clock.now += LOOK_S
    await server.tick()
    assert (len(server.processes), sites.run.outcome) == (MOST_STARTS, "failed")


async def test_after_a_run_that_failed_the_next_one_waits(sites: Sites) -> None:
    server = Server(sites)
    await begun(sites, server)
    await server.learning.step(await server.learning.read(), Ended("failed", "a test"))
    keep_examples(sites, length=100_000)
    for seconds in (LOOK_S, AGAIN_S - LOOK_S - 1.0):
        sites.clock.now += seconds
        await server.tick()
        assert sites.run.outcome == "failed"
    sites.clock.now += LOOK_S
    await server.tick()
    assert sites.run.trigger == "new_tokens"


async def test_a_run_elsewhere_is_not_started_here(sites: Sites) -> None:
    sites.policy.write_text(POLICY.replace("stages:", "run: elsewhere, stages:"))
    server = Server(sites)
    await begun(sites, server)
    await server.tick()
    assert (sites.run.phase, server.processes) == ("due", [])


async def test_a_run_on_this_machine_pauses_while_requests_run(sites: Sites) -> None:
    server = Server(sites)
    await begun(sites, server)
    run = sites.run
    assert sites.runs.swap(replace(run, phase="training", holder="gpu-1", leased_until=sites.clock.now + 300.0))
    server.client.reported = replace(IDLE, num_waiting=1)
    await server.tick()
    assert sites.run.paused_until == 0.0
    assert sites.runs.swap(replace(sites.run, holder=f"{socket.gethostname()} 1"))
    await server.tick()
    assert sites.run.paused_until == sites.clock.now + PAUSE_S


async def test_while_the_store_is_away_everything_stays(sites: Sites, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(sites)
    await promoted(sites, server)
    monkeypatch.setattr(sites.database, "failing", {"read": "away"})
    await server.learning.tick()
    await server.learning.tick()
    assert server.slots == {LEARNT_HEAD: "code@1"}


async def test_where_nothing_was_ever_learnt_the_store_is_asked_once_a_minute(sites: Sites) -> None:
    sites.policy.write_text("rules: [{name: code, match: {tenant: acme}, mode: on}]")
    server = Server(sites)
    reads = list[object]()
    server.learning.read = partial(counted, server.learning.read, reads)  # type: ignore[method-assign]
    await server.learning.tick()
    await server.learning.tick()
    assert len(reads) == 1
    sites.policy.write_text(POLICY)
    await server.tick()
    assert len(reads) > 1, "a rule that learns is followed at once"


async def counted(read: Callable[[], Awaitable[Stored]], reads: list[object]) -> Stored:
    reads.append(read)
    return await read()
