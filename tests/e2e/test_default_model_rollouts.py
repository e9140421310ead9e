"""A rollout of the default model's draft head: one that is damaged meanwhile is rolled back, and no token changes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from prolepsis.engine.build import assemble
from prolepsis.engine.models.heads.registry import find_head, head_for
from prolepsis.engine.models.load import LoadedModel
from prolepsis.lab.measure.prompts import encode_prompts, load_prompts
from tests.default_model import CONFIG
from tests.exact.oracle import at_any_price
from tests.simulation.damaged_head import damaged_head
from tests.simulation.rollouts import Pace, RolloutPlan, Traffic, counted_once, damage
from tests.simulation.server import StepLog, WatchedClient, bodies, running_server

pytestmark = [pytest.mark.real_model, pytest.mark.night]
SMALL = CONFIG.model_copy(update={"max_model_len": 1024, "kv_memory": "128MiB"})
PACE = Pace(at_once=2)
NUM_TOKENS = 16


def client_of(loaded: LoadedModel) -> WatchedClient:
    steps = StepLog()
    engine = assemble(SMALL, loaded, observer=steps, head=head_for("auto", loaded))
    return WatchedClient(at_any_price(engine), steps)


def requests_of(loaded: LoadedModel) -> list[dict[str, object]]:
    prompts = [prompt.token_ids for prompt in encode_prompts(load_prompts(None)[::2], loaded.tokenizer)]
    return [dict(body) for body in bodies(prompts, loaded.model.info.name, NUM_TOKENS)]


@asynccontextmanager
async def traffic_to(
    client: WatchedClient, loaded: LoadedModel, folder: Path, plan: RolloutPlan
) -> AsyncIterator[Traffic]:
    """Serve under `plan`, the plain answers of all requests known; the client is ended with the block."""
    try:
        async with running_server(
            client, client.steps, loaded.tokenizer, folder, policy=str(plan), replay_sample=0.0, shed_after_s=()
        ) as server:
            traffic = Traffic(server, requests_of(loaded))
            await traffic.learn()
            yield traffic
    finally:
        await client.end()


def test_a_head_damaged_during_the_canary_is_rolled_back_without_a_failed_request(
    loaded: LoadedModel, tmp_path: Path
) -> None:
    if head_for("auto", loaded) is None or "native" not in loaded.model.info.forward:
        pytest.skip(f"{loaded.model.info.forward} runs no draft head that is held to bitwise equality")
    plan = RolloutPlan(stages="[80]", shadow_percentage=0, min_samples=8, min_stage_s=300.0)

    async def run() -> None:
        client = client_of(loaded)
        source = find_head(str(client.info.draft_head)).folder
        bad = damaged_head(source, tmp_path / "damaged@9")
        async with traffic_to(client, loaded, tmp_path, plan) as traffic:
            taken = await damage(traffic, client, str(bad), after=8, pace=PACE)
        server = traffic.server
        assert client.info.draft_head == "damaged@9"
        assert [event.kind for _, event in server.events] == ["started", "rolled_back"]
        event = server.events[-1][1]
        assert event.judgement is not None
        assert set(event.judgement.failed) <= {"taken", "far"}
        assert event.judgement.failed
        assert taken.decided_s < 60.0
        assert taken.drafted_after <= 1, "the step that ran when it was decided, and none after it"
        assert traffic.num_wrong == 0
        assert counted_once(client, traffic)

    asyncio.run(run())
