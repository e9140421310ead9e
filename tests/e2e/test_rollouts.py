"""A rollout on a whole server over the table model: a good proposer goes up through all stages; no token changes."""

from dataclasses import replace
from pathlib import Path

from prolepsis.core.config import DRAFT_HEAD
from prolepsis.engine.drafting.draft import Draft
from prolepsis.engine.drafting.proposer import SequenceView
from tests.fake_proposer import Scripted
from tests.fakes import VOCAB, EngineSetup, build, draft_chain
from tests.load.server import LetterTokenizer
from tests.simulation.rollouts import Pace, RolloutPlan, Traffic, ask_until, counted_once
from tests.simulation.server import StepLog, WatchedClient, bodies, running_server

PACE = Pace(at_once=8)
PROMPTS = [[1 + (3 * i + j) % (VOCAB - 1) for j in range(20)] for i in range(8)]
PLAN = RolloutPlan(stages="[30, 80]", min_samples=8, min_stage_s=0.5, acceptance_length=1.1)


def mostly_right(sequence: SequenceView, limit: int) -> Draft:
    return replace(draft_chain(sequence, limit, wrong_from=3), proposer=DRAFT_HEAD)


def client() -> WatchedClient:
    steps, proposer = StepLog(), Scripted(mostly_right, DRAFT_HEAD)
    setup = EngineSetup(max_model_len=512, num_pages=256, proposers=(proposer,), observer=steps)
    return WatchedClient(build(setup), steps)


async def test_a_good_proposer_goes_up_through_all_stages(tmp_path: Path) -> None:
    table = client()
    try:
        async with running_server(
            table, table.steps, LetterTokenizer(), tmp_path, policy=str(PLAN), replay_sample=0.0, shed_after_s=()
        ) as server:
            traffic = Traffic(server, bodies(PROMPTS, "table", 16))
            await traffic.learn()
            await ask_until(traffic, PACE, lambda: server.last[0] == "completed")
            traffic.seen.clear()
            await ask_until(traffic, PACE, lambda: traffic.seen.total() >= 40)
    finally:
        await table.end()
    assert [(event.kind, event.stage) for _, event in server.events] == [
        ("started", "shadow"),
        ("promoted", "shadow"),
        ("promoted", "canary 30%"),
        ("completed", "canary 80%"),
    ]
    assert all(event.judgement is not None for _, event in server.events[1:])
    assert traffic.num_on > 20
    assert {arm for arm, _, _ in traffic.seen} <= {"canary", "holdout"}
    assert traffic.num_wrong == 0
    assert counted_once(table, traffic)
