"""Schemas of every kind, each walked to an end at random: it compiles to answers that hold it, or it is refused.

`PROLEPSIS_TEST_SCHEMAS` is the number of schemas; 300 take about two minutes.
"""

import json
import math
import os
import random
from datetime import date, datetime, time

import jsonschema
import numpy as np
import pytest
from jsonschema.exceptions import FormatError

from prolepsis.core.errors import InvalidGrammar, ModelError
from prolepsis.core.requests import GrammarSpec
from prolepsis.engine.models.files.store import resolve
from prolepsis.engine.models.files.tokenizer_files import load_tokenizer
from prolepsis.engine.text.grammar.grammars import Grammars
from prolepsis.engine.text.grammar.matcher import CompiledGrammar
from prolepsis.engine.text.model_tokenizer import ModelTokenizer
from tests.engine.text.grammar.schemas import generated

NUM_SCHEMAS = int(os.environ.get("PROLEPSIS_TEST_SCHEMAS", "40"))
MAX_TOKENS = 600
_ENDS = '"}],'
_STRICT = {"date": date.fromisoformat, "time": time.fromisoformat, "date-time": datetime.fromisoformat}
_FORMATS = jsonschema.FormatChecker(("ipv4", "ipv6", "uuid"))
_INTERNAL = ("llguidance", "NoExtensionBias", "parser", "lexer", "panic", "SearchRegex", "rx_", "fuel", "ff_tokens")


@pytest.fixture(scope="module")
def tokenizer() -> ModelTokenizer:
    try:
        return load_tokenizer(resolve("smollm2-135m-instruct"))
    except ModelError as error:
        pytest.skip(f"the default model is not here: {error}")


@pytest.fixture(scope="module")
def grammars(tokenizer: ModelTokenizer) -> Grammars:
    return Grammars(tokenizer.to_json, tokenizer.vocab_size, tokenizer.eos_token_ids)


def walked(grammar: CompiledGrammar, tokenizer: ModelTokenizer, rng: random.Random) -> str | None:
    """Return an answer of random allowed tokens, with a bias to ends; None: it has none within the limit."""
    matcher, tokens, eos = grammar.matcher(), list[int](), list(tokenizer.eos_token_ids)
    likely = [token for character in _ENDS for token in tokenizer.encode(character, add_special_tokens=False)]
    while not matcher.is_over() and len(tokens) < MAX_TOKENS:
        mask = matcher.mask()
        may_end = mask[eos].any()
        mask[eos] = False
        if may_end and (not mask.any() or rng.random() < 0.7):
            break
        ends = [token for token in likely if mask[token]]
        takes_end = ends and rng.random() < min(0.9, 0.3 + len(tokens) / 100)
        token = int(rng.choice(ends if takes_end else np.flatnonzero(mask).tolist()))
        matcher.advance([token])
        tokens.append(token)
    return tokenizer.decode(tokens) if matcher.is_accepting() else None


def check(text: str, schema: object) -> None:
    """Raise where a strict reader refuses the answer, or it does not hold the schema."""
    value = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} in {text}"))
    numbers = [value]
    while numbers:
        part = numbers.pop()
        assert not isinstance(part, float) or math.isfinite(part), text
        assert not isinstance(part, int) or math.isfinite(float(part)), text
        numbers += part if isinstance(part, list) else part.values() if isinstance(part, dict) else ()
    strict = jsonschema.validators.extend(jsonschema.Draft202012Validator, {"format": _strict_format})  # type: ignore[no-untyped-call]
    strict(schema, format_checker=_FORMATS).validate(value)


def _strict_format(validator: object, name: str, value: object, schema: object) -> object:
    if isinstance(value, str) and name in _STRICT:
        try:
            _STRICT[name](value)
        except ValueError as error:
            yield jsonschema.ValidationError(str(error))
    elif isinstance(value, str):
        try:
            _FORMATS.check(value, name)
        except FormatError as error:
            yield jsonschema.ValidationError(str(error))


def compiled(grammars: Grammars, spec: GrammarSpec) -> CompiledGrammar | None:
    """Return None for a schema that is refused, in plain words."""
    try:
        return grammars.compile(spec)
    except InvalidGrammar as error:
        inside = [word for word in _INTERNAL if word in str(error)]
    assert not inside
    return None


def test_every_answer_to_a_schema_that_compiles_holds_it(grammars: Grammars, tokenizer: ModelTokenizer) -> None:
    num_compiled = num_ended = 0
    for seed in range(NUM_SCHEMAS):
        spec, rng = generated(seed), random.Random(seed)
        grammar = compiled(grammars, spec)
        if grammar is None:
            continue
        num_compiled += 1
        for _ in range(3):
            text = walked(grammar, tokenizer, rng)
            if text is not None:
                num_ended += 1
                check(text, json.loads(spec.source))
    assert num_compiled > NUM_SCHEMAS / 3, "the generator makes schemas that can be kept"
    assert num_ended > 2.5 * num_compiled, "nearly all walks come to an end"
