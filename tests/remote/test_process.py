"""Real processes: what the engine says there, how it ends, and what is left of it."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from prolepsis.core.engine_client import EngineClient
from prolepsis.core.errors import EngineDead, ModelLoadError
from prolepsis.core.events import Event, Failed, Finished
from prolepsis.core.phases import Phases, watching
from prolepsis.core.requests import GenerateRequest, GrammarSpec, SamplingParams
from prolepsis.engine.start import start_engine
from prolepsis.remote.process import EngineSpawn
from tests.fakes import outputs
from tests.training.targets import config_of, save_target


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_target(tmp_path_factory.mktemp("target"))


def sources() -> list[GenerateRequest]:
    """Return a greedy request, sampled ones, and one with a grammar."""
    choice = GrammarSpec("choice", '["yes, indeed", "yes, perhaps"]')
    return [
        GenerateRequest("greedy", (5, 6, 7), SamplingParams(temperature=0.0, max_tokens=24)),
        GenerateRequest("sampled", (5, 6, 7), SamplingParams(seed=11, max_tokens=24), n=2),
        GenerateRequest("choice", (9,), SamplingParams(seed=12, max_tokens=24), grammar=choice),
    ]


async def collect(client: EngineClient, source: GenerateRequest) -> list[Event]:
    return [event async for event in client.generate(source)]


async def answers(client: EngineClient) -> dict[tuple[str, int], list[int]]:
    found = await asyncio.gather(*(collect(client, source) for source in sources()))
    assert all(isinstance(events[-1], Finished) for events in found)
    return {sample: tokens for events in found for sample, tokens in outputs(events).items()}


async def test_answers_equal_those_of_the_thread_and_a_killed_process_is_reported(folder: Path) -> None:
    here = start_engine(config_of(folder))
    expected = await answers(here.client)
    await here.client.close()
    phases = Phases()
    with watching(phases):
        there = EngineSpawn(config_of(folder)).first()
    assert "loading libraries" in phases.seconds, "what the other process does is seen here"
    assert await answers(there.client) == expected
    assert there.client.info == here.client.info
    assert there.tokenizer.state == here.tokenizer.state
    assert there.tokenizer.fingerprint == here.tokenizer.fingerprint
    endless = SamplingParams(temperature=0.0, max_tokens=400, ignore_eos=True)
    stream = there.client.generate(GenerateRequest("endless", (5,), endless))
    await anext(stream)
    assert there.client.process is not None
    os.kill(there.client.process.pid, signal.SIGINT)  # as a terminal does; the server decides when to end
    os.kill(there.client.process.pid, signal.SIGTERM)
    assert isinstance((await collect(there.client, sources()[0]))[-1], Finished)
    os.kill(there.client.process.pid, signal.SIGKILL)
    *_, last = [event async for event in stream]
    assert isinstance(last, Failed)
    assert isinstance(last.error, EngineDead)
    await there.client.close()


def test_an_error_while_loading_reaches_the_parent(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelLoadError, match=str(tmp_path)):
        EngineSpawn(config_of(tmp_path)).first()


async def test_a_start_that_is_given_up_leaves_no_process_and_no_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that stops while an engine is started again would wait for the model."""
    endless = tmp_path / "python"
    endless.write_text("#!/bin/sh\nexec sleep 1000\n")
    endless.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(endless))
    starting = asyncio.create_task(EngineSpawn(config_of(tmp_path)).again())
    await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await asyncio.get_running_loop().shutdown_default_executor()


ORPHAN = """
import os, sys
from prolepsis.core.config import EngineConfig
from prolepsis.remote.process import EngineSpawn
engine = EngineSpawn(EngineConfig.model_validate_json(sys.argv[1])).first()
print(engine.client.process.pid, flush=True)
os._exit(1)
"""


def test_a_process_ends_with_its_server(folder: Path) -> None:
    """Its standard output is a copy of the server's: the pipe that is read here ends when both are gone."""
    command = [sys.executable, "-c", ORPHAN, config_of(folder).model_dump_json()]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, timeout=120)
    assert done.returncode == 1
    assert int(done.stdout) > 0
