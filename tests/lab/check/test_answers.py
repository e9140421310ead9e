"""Plain and speculated answers in turns, on a fake engine: what is asked, compared, and kept of differences."""

from collections import Counter
from itertools import islice

import pytest

from prolepsis.core.requests import GenerateRequest
from prolepsis.lab.check.answers import (
    AT_ONCE,
    CheckedRequest,
    ComparedAnswers,
    answer_length,
    engine_answers,
    turns,
)
from prolepsis.lab.measure.prompts import EncodedPrompt
from tests.lab.measure.fakes import Alter, table_client, tokens_of

SAMPLES = [EncodedPrompt("a", "chat", (5, 6)), EncodedPrompt("b", "code", (7,)), EncodedPrompt("c", "code", (8, 9))]


def wrong_at_once(request: GenerateRequest, speculating: bool) -> list[int]:
    tokens = tokens_of(request, speculating)
    return [*tokens[:4], 250, 251] if speculating and f"auto {AT_ONCE} " in request.cache_salt else tokens


def made(alter: Alter = tokens_of) -> ComparedAnswers:
    client = table_client(alter, plain_s=0.03, speculated_s=0.01)
    return ComparedAnswers(engine_answers(client), client)


def test_every_prompt_comes_alone_before_some_of_a_kind_come_at_once() -> None:
    first = [[(case.sample.id, case.round) for case in cases] for _, cases in islice(turns(SAMPLES, 9), 5)]
    chat, code = [("a", 0), ("a", 1), ("a", 2), ("a", 3)], [("b", 0), ("c", 0), ("b", 1), ("c", 1)]
    assert first == [[("a", 0)], [("b", 0)], [("c", 0)], chat, code]


def test_no_case_comes_twice_at_a_load_and_prompts_of_a_group_stay_together() -> None:
    samples = [EncodedPrompt(str(i), "chat", ()) for i in range(6)]
    some = list(islice(turns(samples, 9), 50))
    for at_once in (1, AT_ONCE):
        found = [case for _, cases in some if len(cases) == at_once for case in cases]
        assert len(set(found)) == len(found) > 0
    assert Counter(unit for unit, cases in some if len(cases) == AT_ONCE) == {"group 0": 5, "group 1": 5}


@pytest.mark.parametrize(
    ("seconds", "speed", "sizes", "length"),
    [
        (180.0, 40.0, [3, 3, 2], 128),
        (180.0, 10.0, [3, 3, 2], 75),
        (180.0, 10.0, [100, 3], 75),  # of a kind with many prompts five are enough
        (10.0, 5.0, [100], 48),
    ],
)
def test_answers_are_as_long_as_the_time_allows(seconds: float, speed: float, sizes: list[int], length: int) -> None:
    assert answer_length(seconds, speed, sizes) == length


async def test_both_modes_answer_and_their_times_are_compared() -> None:
    compared = made()
    await compared.compare("one", [CheckedRequest(SAMPLES[0])])
    await compared.compare("group 0", [CheckedRequest(SAMPLES[1], i) for i in range(AT_ONCE)])
    alone, together = compared.comparisons
    assert (alone.traffic_class, alone.at_once, alone.num_tokens, alone.num_steps) == ("chat", 1, 6, 2)
    assert (together.traffic_class, together.at_once, together.num_tokens, together.num_steps) == ("code", 4, 24, 8)
    assert all(each.plain_s >= 0.03 and each.speculated_s >= 0.01 for each in compared.comparisons)
    assert (compared.num_answers, compared.differences) == (5, [])


async def test_an_answer_is_held_against_that_of_the_prompt_alone() -> None:
    compared, case = made(wrong_at_once), CheckedRequest(SAMPLES[0])
    await compared.compare("one", [case])
    await compared.compare("group 0", [case, *(CheckedRequest(SAMPLES[0], i) for i in range(1, AT_ONCE))])
    assert compared.num_answers == 1 + 2 + 3, "plain answers in a group count where the prompt was answered alone"
    assert {prompt for prompt, _ in compared.differences} == {"a"}
    assert {(first.run, first.position, first.kind) for _, first in compared.differences} == {
        ("speculated, 4 at once", 4, "near_tie")
    }


async def test_a_warm_up_asks_a_prompt_of_each_kind_and_compares_nothing() -> None:
    client = table_client()
    compared = ComparedAnswers(engine_answers(client), client)
    assert 0.0 < await compared.warm_up(SAMPLES) < 6 / 0.03
    assert [(request.prompt_token_ids, request.speculation.mode) for request in client.requests] == [
        ((5, 6), "auto"),
        ((8, 9), "auto"),
        ((5, 6), "off"),
    ]
    assert not compared.comparisons
