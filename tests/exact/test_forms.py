"""Calls and forms with marks that are one token: valid, and the same in every mode, streamed and whole."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from prolepsis.core.config import EngineConfig
from prolepsis.engine.models.load import load_model
from tests.engine.models.files.vocabularies import OWN
from tests.exact.form_server import answer_all
from tests.exact.forms import drawn, fault

NUM_REQUESTS = 8


@pytest.mark.parametrize("vocabulary", OWN)
def test_random_requests_have_one_valid_answer_in_every_mode(
    tiny_family: Callable[[str, str], Path], vocabulary: str
) -> None:
    path = tiny_family(vocabulary, "hermes")
    config = EngineConfig(model=str(path), max_model_len=4096, strict="off", kv_memory="64MiB")
    loaded, draw, found = load_model(config), random.Random(3), Counter[str]()
    asked = [drawn(draw, loaded.tokenizer) for _ in range(NUM_REQUESTS)]
    given = asyncio.run(answer_all(config, loaded, [one.body for one in asked], 4))
    for one, answers in zip(asked, given, strict=True):
        assert not isinstance(answers, str), answers
        assert not answers.differ, (one, answers)
        for answer in answers.chats:
            assert (why := fault(one, answer, loaded.tokenizer)) is None, (why, one, answer)
        first = answers.chats[0]
        found.update(calls=bool(first.calls), reasoning=bool(first.reasoning), whole=first.finish != "length")
    assert all(found.values()), found
