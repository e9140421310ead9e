"""Two replicas of the coder model: the process of one is killed under load, and every answer is as if nothing was."""

import json

import pytest

from prolepsis.core.requests import GenerateRequest, GrammarSpec, SamplingParams
from prolepsis.engine.models.load import LoadedModel
from prolepsis.engine.start import EngineStart
from prolepsis.remote.engines import Engines
from prolepsis.remote.members import Member
from prolepsis.remote.process import EngineSpawn
from tests.coder_model import CONFIG, SLOW_S, needs_coder
from tests.exact.cuts import answers_of
from tests.remote.killable_engines import ProcessKiller, check, serve

pytestmark = [needs_coder, pytest.mark.timeout(SLOW_S)]
NUM_TOKENS = 48
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "lines": {"type": "integer", "maximum": 99}},
    "required": ["name", "lines"],
    "additionalProperties": False,
}
KINDS: dict[str, tuple[SamplingParams, GrammarSpec | None]] = {
    "greedy": (SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS), None),
    "sampled": (SamplingParams(temperature=0.8, seed=3, max_tokens=NUM_TOKENS, logprobs=2), None),
    "penalties": (SamplingParams(temperature=0.7, repetition_penalty=1.1, seed=4, max_tokens=NUM_TOKENS), None),
    "schema": (SamplingParams(seed=5, max_tokens=NUM_TOKENS), GrammarSpec("json_schema", json.dumps(SCHEMA))),
}


async def test_streams_go_on_in_the_other_replica(coder: LoadedModel) -> None:
    question = [{"role": "user", "content": "Write a Python function that reverses a linked list."}]
    prompt = tuple(coder.tokenizer.apply_chat_template(question))
    load = [
        GenerateRequest(f"{name} {i}", prompt, params, n=1 + i, grammar=grammar)
        for name, (params, grammar) in KINDS.items()
        for i in range(2)
    ]
    start, spawn = EngineStart(CONFIG, coder), EngineSpawn(CONFIG)
    here = start.first()
    expected = {name: answers_of(events)[name] for name, events in (await serve(here, load)).items()}
    there = spawn.first().client
    client = Engines([Member(here, start.again), Member(there, spawn.again)])
    try:
        found = await serve(client, load, ProcessKiller(there, after=40))
        assert check(found, expected) > 0
        assert client.health().ready
    finally:
        await client.close()
