"""Bodies of llama.cpp's API as the completions that they stand for."""

import json
from typing import Any

import pytest

from prolepsis.control.web.body_reader import parse_body
from prolepsis.control.web.errors import RequestRefused
from prolepsis.control.web.foreign_fields import Ignored
from prolepsis.engine.text.named_tokens import FillMarks
from prolepsis.server.dialects.llamacpp.parse import (
    LlamaCppCompletionBody,
    LlamaCppInfillBody,
    parse_completion,
    parse_infill,
)
from prolepsis.server.preparing.bodies import CompletionBody
from tests.server.fakes import ByteTokenizer


class WithBegin(ByteTokenizer):
    fill_marks = FillMarks(251, 252, 253)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [*([250] if add_special_tokens else []), *text.encode()]


def completion(ignored: Ignored | None = None, /, **fields: object) -> CompletionBody:
    raw, dropped = json.dumps({"prompt": "Hi", **fields}).encode(), Ignored() if ignored is None else ignored
    return parse_completion(parse_body(raw, LlamaCppCompletionBody, dropped), WithBegin())


def infill(room: int = 400, **fields: object) -> CompletionBody:
    raw = json.dumps({"input_prefix": "a\n", "input_suffix": "\nreturn b\n", **fields}).encode()
    return parse_infill(parse_body(raw, LlamaCppInfillBody, Ignored()), WithBegin(), room)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("Hi", "Hi"),
        ([7, 8], [7, 8]),
        ([7, "ab", 8], [7, *b"ab", 8]),
        (["ab", 7, "c"], [250, *b"ab", 7, *b"c"]),
    ],
)
def test_prompts_are_texts_tokens_or_both(prompt: object, expected: object) -> None:
    assert completion(prompt=prompt).prompt == [expected]


def test_parameters_have_names_of_their_own() -> None:
    ignored = Ignored()
    made = completion(
        ignored,
        model="tiny",
        n_predict=9,
        temperature=0.5,
        top_k=3,
        top_p=0.25,
        min_p=0.125,
        repeat_penalty=1.5,
        presence_penalty=0.75,
        frequency_penalty=0.5,
        seed=7,
        stop=["END"],
        n_probs=2,
        ignore_eos=True,
        stream=True,
        cache_prompt=True,
        id_slot=0,
        samplers=["top_k", "infill"],
        t_max_predict_ms=250,
        typical_p=1.0,
        mirostat=0,
    )
    assert (made.model, made.max_tokens, made.temperature, made.top_k) == ("tiny", 9, 0.5, 3)
    assert (made.top_p, made.min_p, made.repetition_penalty) == (0.25, 0.125, 1.5)
    assert (made.presence_penalty, made.frequency_penalty) == (0.75, 0.5)
    assert (made.seed, made.stop, made.logprobs, made.ignore_eos, made.stream) == (7, ["END"], 2, True, True)
    assert str(ignored) == "without effect: samplers"


@pytest.mark.parametrize("limit", [-1, -2, None])
def test_without_a_limit_an_answer_may_fill_the_context(limit: int | None) -> None:
    fields = {} if limit is None else {"n_predict": limit}
    assert completion(**fields).max_tokens is None
    assert completion(n_predict=0).max_tokens == 1


@pytest.mark.parametrize(("seed", "expected"), [(-1, None), (2**32 - 1, None), (0, 0), (-2, -2)])
def test_some_seeds_are_drawn(seed: int, expected: int | None) -> None:
    assert completion(seed=seed).seed == expected


def test_a_temperature_below_zero_is_zero() -> None:
    assert completion(temperature=-1).temperature == 0
    assert completion().temperature is None


@pytest.mark.parametrize(
    ("biases", "expected"),
    [([[5, 1.5], [6, False]], {5: 1.5, 6: -100}), ({"5": 1}, {5: 1}), ([], {}), (None, None)],
)
def test_biases_are_pairs_or_an_object(biases: object, expected: object) -> None:
    assert completion(logit_bias=biases).logit_bias == expected


def test_the_form_of_an_answer() -> None:
    schema = {"type": "object"}
    form, grammar = completion(json_schema=schema).response_format, completion(grammar='root ::= "a"')
    assert form is not None
    assert form.json_schema is not None
    assert form.json_schema.schema_ == schema
    assert grammar.structured_outputs is not None
    assert grammar.structured_outputs.grammar == 'root ::= "a"'
    assert completion(grammar="").structured_outputs is None


def test_a_gap_is_a_prompt_of_tokens() -> None:
    made = infill(prompt="b = ", input_extra=[{"text": "one"}])
    files = b"\n\n--- snippet ---\n\none"
    assert made.prompt == [[250, *files, 251, *b"a\nb = ", 252, *b"\nreturn b\n", 253]]
    assert made.stop == ["\nreturn b\n"]
    assert made.repetition_penalty == 1
    own = infill(stop=["#"], repeat_penalty=1.5)
    assert (own.stop, own.repetition_penalty) == (["#"], 1.5)


@pytest.mark.parametrize(("limit", "most"), [(20, 80), (80, 50), (-1, 50)])
def test_a_gap_leaves_room_for_its_answer(limit: int, most: int) -> None:
    [prompt] = infill(100, input_extra=[{"text": "x" * 200}], n_predict=limit).prompt
    assert len(prompt) == most


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"prompt": ["a", ["b"]]}, "'prompt"),
        ({"prompt": None}, "'prompt'"),
        ({"logit_bias": [["Hello", 1]]}, "'Hello' is not a token id"),
        ({"n_cmpl": 2}, "'n_cmpl' is not supported"),
        ({"mirostat": 2}, "'mirostat' is not supported"),
        ({"max_tokens": 5}, "'n_predict'"),
        ({"n_predict": -3}, "'n_predict'"),
    ],
)
def test_what_would_change_the_answer_is_refused_by_name(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestRefused) as caught:
        completion(**fields)
    assert said in str(caught.value)
