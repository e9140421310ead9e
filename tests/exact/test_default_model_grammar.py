"""The default model under a JSON schema: valid, and with speculation the same to the token as without."""

import asyncio
import json
from dataclasses import replace

import jsonschema
import pytest

from prolepsis.core.ask import TimedAnswer, ask
from prolepsis.core.errors import InvalidGrammar
from prolepsis.core.requests import GenerateRequest, GrammarSpec, SamplingParams, SpeculationChoice
from prolepsis.engine.build import assemble
from prolepsis.engine.models.load import LoadedModel
from prolepsis.engine.thread import ThreadEngineClient
from tests.default_model import CONFIG

pytestmark = pytest.mark.real_model
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 16},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "colours": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "age", "colours"],
    "additionalProperties": False,
}
SPECS = {
    "json": GrammarSpec("json_schema", json.dumps(SCHEMA)),
    "date": GrammarSpec("regex", r"\d{4}-\d{2}-\d{2}"),
    "choice": GrammarSpec("choice", '["positive", "neutral", "negative"]'),
}
KINDS = (SamplingParams(temperature=0.0, max_tokens=96), SamplingParams(temperature=1.0, seed=5, max_tokens=96))


async def answers(loaded: LoadedModel) -> dict[str, tuple[TimedAnswer, TimedAnswer]]:
    prompt = loaded.tokenizer.apply_chat_template([{"role": "user", "content": "Describe Anna, who is 31, as data."}])
    client = ThreadEngineClient(assemble(CONFIG, loaded))
    sources = [
        GenerateRequest(f"{name}{i}", tuple(prompt), params, grammar=spec)
        for name, spec in SPECS.items()
        for i, params in enumerate(KINDS)
    ]
    off = SpeculationChoice("off")
    try:
        plain = [ask(client, replace(one, request_id=f"{one.request_id} plain", speculation=off)) for one in sources]
        plain_answers = await asyncio.gather(*plain)
        answers = await asyncio.gather(*(ask(client, one) for one in sources))
        pairs = zip(plain_answers, answers, strict=True)
        found = {one.request_id: pair for one, pair in zip(sources, pairs, strict=True)}
        with pytest.raises(InvalidGrammar):
            await ask(client, GenerateRequest("bad", tuple(prompt), KINDS[0], grammar=GrammarSpec("regex", "(")))
        return found
    finally:
        await client.close()


def test_answers_are_valid_and_the_same_with_speculation(loaded: LoadedModel, strict: bool) -> None:
    for name, (plain, speculated) in asyncio.run(answers(loaded)).items():
        text = loaded.tokenizer.decode(speculated.token_ids)
        if name.startswith("json"):
            jsonschema.validate(json.loads(text), SCHEMA)
            assert speculated.stats.num_steps < 0.8 * len(speculated.token_ids)
        elif name.startswith("choice"):
            assert text in ("positive", "neutral", "negative")
        else:
            assert [part.isdigit() for part in text.split("-")] == [True] * 3
        if strict:
            assert speculated.token_ids == plain.token_ids
