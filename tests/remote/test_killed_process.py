"""An engine's process is killed with -9 under load: another takes its place, and every answer is as if nothing was."""

import random
from dataclasses import replace
from pathlib import Path

from prolepsis.core.requests import GenerateRequest, GrammarSpec, SamplingParams
from prolepsis.remote.engines import Engines
from prolepsis.remote.members import Member
from prolepsis.remote.process import EngineSpawn
from tests.engine.models.kernels import NEEDS_KERNELS
from tests.exact.cuts import answers_of
from tests.remote.killable_engines import ProcessKiller, check, serve
from tests.training.targets import config_of, save_target

pytestmark = NEEDS_KERNELS

_PARAMS = {
    "greedy": SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True),
    "sampled": SamplingParams(max_tokens=60, ignore_eos=True, logprobs=2),
    "penalties": SamplingParams(temperature=0.7, frequency_penalty=0.6, max_tokens=60, ignore_eos=True),
    "stops": SamplingParams(max_tokens=60, stop=("e", "qu"), min_tokens=9),
}
REGEX = GrammarSpec("regex", "[a-f]{30,40} [0-9]{4,9}")
LOAD = [
    GenerateRequest(f"{name} {seed}", (5 + seed, 6, 7), replace(params, seed=seed), n=1 + seed % 2)
    for name, params in _PARAMS.items()
    for seed in range(3)
] + [
    GenerateRequest(f"regex {seed}", (9, seed), SamplingParams(seed=seed, max_tokens=60), grammar=REGEX)
    for seed in range(4)
]


async def test_a_killed_process_is_replaced(tmp_path: Path) -> None:
    config = config_of(save_target(tmp_path, native=True))
    spawn = EngineSpawn(config.model_copy(update={"forward": "auto", "max_requests": 24}))
    first = spawn.first().client
    assert first.info.exactness == "strict", first.info.exactness_reason
    client = Engines([Member(first, spawn.again)])
    expected = {name: answers_of(events)[name] for name, events in (await serve(client, LOAD)).items()}
    found = await serve(client, LOAD, ProcessKiller(first, random.Random(5).randrange(300)))
    assert check(found, expected) > 0
    assert client.health().ready
    await client.close()
