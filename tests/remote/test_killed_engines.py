"""Two real engines, one killed at random points of sixteen streams: every answer equals the undisturbed one."""

import asyncio
import random

import pytest

from prolepsis.core.engine_client import EngineClient
from prolepsis.engine.runner import Runner
from prolepsis.remote.engines import Engines
from prolepsis.remote.members import Member
from tests.exact.cuts import Answer
from tests.fakes import TableModel
from tests.remote.killable_engines import LOAD, Killer, check, engine, kill, serve, undisturbed


@pytest.fixture(scope="module")
def expected() -> dict[str, Answer]:
    return asyncio.run(undisturbed())


@pytest.mark.parametrize("seed", range(8))
async def test_one_of_two_engines_is_killed(seed: int, expected: dict[str, Answer]) -> None:
    first, second = engine(), engine()
    client = Engines([Member(first), Member(second)])
    kill(first, after_steps=random.Random(seed).randrange(1, 50))
    found = await serve(client, LOAD)
    await client.close()
    assert check(found, expected) > 0


async def test_engines_are_killed_and_started_again(expected: dict[str, Answer]) -> None:
    engines: list[EngineClient] = [engine()]
    killer = Killer(7, *engines, num_events=60)

    async def start() -> EngineClient:
        engines.append(engine())
        if len(engines) < 4:
            killer.victims.append(engines[-1])
            killer.strike_after(40)
        return engines[-1]

    client = Engines([Member(engines[0], start)])
    found = await serve(client, LOAD, killer)
    assert len(engines) == 4
    assert client.health().ready
    assert check(found, expected) > 0
    await client.close()


async def test_a_pass_that_fails_now_and_then_ends_no_stream(expected: dict[str, Answer]) -> None:
    one = engine()
    assert isinstance(one.engine.runner, Runner)
    model = one.engine.runner.model
    assert isinstance(model, TableModel)
    client = Engines([Member(one)])
    running = asyncio.ensure_future(serve(client, LOAD))
    while model.num_passes < 10:  # noqa: ASYNC110  the engine's thread counts them
        await asyncio.sleep(0)
    model.fail_next = 1
    assert check(await running, expected) > 0
    await client.close()
