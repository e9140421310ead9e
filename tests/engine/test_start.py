"""An engine that is built again: around the same model, in memory that the last one has left."""

import gc
from collections.abc import Iterator
from dataclasses import replace
from weakref import ref

import pytest

from prolepsis.engine.models.protocol import TargetModel
from prolepsis.engine.runner import Runner
from prolepsis.engine.start import EngineStart
from prolepsis.engine.thread import ThreadEngineClient
from tests.engine.models.kernels import NEEDS_KERNELS
from tests.exact.oracle import CONFIG, ask, plain, target
from tests.fakes import outputs

pytestmark = NEEDS_KERNELS


@pytest.fixture(autouse=True)
def frozen() -> Iterator[None]:
    """What a test leaves frozen is collected."""
    yield
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def model_of(client: ThreadEngineClient) -> TargetModel:
    assert isinstance(client.engine.runner, Runner)
    return client.engine.runner.model


async def test_the_last_engine_is_gone_before_the_next_is_built() -> None:
    start = EngineStart(CONFIG, target())
    client = start.first()
    gc.freeze()
    engine, model = ref(client.engine), model_of(client)
    [event async for event in client.generate(ask("greedy"))]
    await client.close()
    del client
    assert engine() is not None, "it refers to itself"
    again = await start.again()
    assert engine() is None
    assert gc.get_freeze_count() > 0, "collections pass over what the next one is made of too"
    assert model_of(again) is model
    events = [event async for event in again.generate(ask("greedy"))]
    assert outputs(events)["greedy", 0] == plain("greedy")[0]
    await again.close()


async def test_a_model_whose_step_may_not_have_ended_is_loaded_again() -> None:
    fresh = replace(target(), fingerprint="fresh")
    start = EngineStart(CONFIG, target(), load=lambda _: fresh)
    client = start.first()
    client.watchdog.gave_up = True
    again = await start.again()
    assert start.target is fresh
    assert again.info.fingerprint == "fresh"
    assert again.engine.scheduler.limits.max_step_tokens == 16, "a quarter of 48, or the least: its steps are to end"
    await client.close()
    await again.close()


async def test_a_later_engine_has_the_context_of_the_first() -> None:
    """Streams go on in it: their longest sequence must not depend on what is free now."""
    start = EngineStart(CONFIG.model_copy(update={"max_model_len": None, "kv_memory": "auto"}), target())
    client = start.first()
    await client.close()
    assert start.config.max_model_len == client.info.max_model_len
