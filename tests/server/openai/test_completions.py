"""The official client against a real server: shapes, usage, and every stream equal to its non-streamed twin."""

from typing import Any

import pytest

from prolepsis.adapters.upstream.vllm import VllmReader
from prolepsis.core.events import TokenLogprobs
from prolepsis.core.requests import GenerateRequest
from tests.server.conftest import Served, served
from tests.server.fakes import FakeEngine

USER: Any = [{"role": "user", "content": "Hi"}]
TEXT = FakeEngine().text

VARIANTS: list[dict[str, Any]] = [
    {},
    {"max_tokens": 7},
    {"max_tokens": 3},  # ends inside a character
    {"n": 3, "seed": 5},
    {"stop": "world"},
    {"stop": ["👋 d", "zzz"], "n": 2},
    {"stop": "e"},
    {"temperature": 0, "top_p": 0.5, "presence_penalty": 1, "frequency_penalty": -1, "logit_bias": {"65": -100}},
]
CHAT_ONLY: list[dict[str, Any]] = [
    {"logprobs": True, "top_logprobs": 3},
    {"logprobs": True, "stop": "world", "max_completion_tokens": 40},
    {"prediction": {"type": "content", "content": "Grüße"}},
]
COMPLETION_ONLY: list[dict[str, Any]] = [{"logprobs": 2}, {"logprobs": 0, "stop": "o"}, {"max_tokens": 40}]


@pytest.mark.parametrize("options", VARIANTS + CHAT_ONLY)
def test_chat_stream_equals_its_twin(shared: Served, options: dict[str, Any]) -> None:
    create: Any = shared.openai().chat.completions.create
    whole = create(model="tiny", messages=USER, **options)
    chunks = list(create(model="tiny", messages=USER, stream=True, stream_options={"include_usage": True}, **options))
    for choice in whole.choices:
        mine = [c.choices[0] for c in chunks if c.choices and c.choices[0].index == choice.index]
        assert "".join(part.delta.content or "" for part in mine) == choice.message.content
        assert mine[0].delta.role == choice.message.role == "assistant"
        assert all(part.delta.role is None for part in mine[1:])
        assert [part.finish_reason for part in mine] == [None] * (len(mine) - 1) + [choice.finish_reason]
        logprobs = [token for part in mine for token in (part.logprobs.content if part.logprobs else [])]
        assert logprobs == (choice.logprobs.content if choice.logprobs else [])
    assert len(whole.choices) == options.get("n", 1)
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    assert {chunk.id for chunk in chunks} == {chunks[0].id} != {whole.id}
    assert whole.system_fingerprint == chunks[0].system_fingerprint == "fp_test"


@pytest.mark.parametrize("options", VARIANTS + COMPLETION_ONLY)
def test_completion_stream_equals_its_twin(shared: Served, options: dict[str, Any]) -> None:
    create: Any = shared.openai().completions.create
    whole = create(model="tiny", prompt="Hi", **options)
    chunks = list(create(model="tiny", prompt="Hi", stream=True, stream_options={"include_usage": True}, **options))
    for choice in whole.choices:
        mine = [c.choices[0] for c in chunks if c.choices and c.choices[0].index == choice.index]
        assert "".join(part.text for part in mine) == choice.text
        assert mine[-1].finish_reason == choice.finish_reason
        if choice.logprobs is not None:
            for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
                joined = [item for part in mine for item in getattr(part.logprobs, name)]
                assert joined == getattr(choice.logprobs, name)
    assert chunks[-1].usage == whole.usage


def test_the_bytes_of_tokens_make_up_the_text_and_offsets_are_places_in_it(shared: Served) -> None:
    text = shared.engine.text
    shown = shared.openai()
    chat = shown.chat.completions.create(model="tiny", messages=USER, logprobs=True).choices[0].logprobs
    assert chat is not None
    assert chat.content is not None
    assert b"".join(bytes(token.bytes or ()) for token in chat.content) == text.encode() + b"<end>"
    response = shown.responses.create(model="tiny", input="Hi", include=["message.output_text.logprobs"])
    parts: Any = response.output[0]
    assert [one.bytes for one in parts.content[0].logprobs] == [one.bytes for one in chat.content]
    plain = shown.completions.create(model="tiny", prompt="Hi", logprobs=0, max_tokens=99).choices[0].logprobs
    assert plain is not None
    characters = [i for i, character in enumerate(text) for _ in character.encode()]
    assert plain.text_offset == [*characters, len(text)], "a byte stands in the character that it is a part of"


def test_top_logprobs_of_completions_always_hold_the_emitted_token(shared: Served) -> None:
    create: Any = shared.openai().completions.create
    alone = create(model="tiny", prompt="Hi", logprobs=0).choices[0].logprobs
    assert alone.top_logprobs == [{token: -0.25} for token in alone.tokens]
    three = create(model="tiny", prompt="Hi", logprobs=3).choices[0].logprobs
    top = {"A": -0.5, "B": -9999.0, "C": -2.0}
    assert three.top_logprobs == [{**top, token: -0.25} for token in three.tokens]


class Alike(FakeEngine):
    """Its likeliest tokens are parts of characters, whose texts are equal."""

    def _logprobs(self, request: GenerateRequest, part: tuple[int, ...]) -> tuple[TokenLogprobs, ...]:
        return tuple(TokenLogprobs(-3.0, ((0xC3, -1.0), (0xC4, -2.0))) for _ in part)


def test_the_likeliest_of_top_tokens_with_equal_texts_is_shown() -> None:
    with served(Alike("x")) as running:
        reply = running.openai().completions.create(model="tiny", prompt="Hi", logprobs=2, max_tokens=1)
        assert reply.choices[0].logprobs is not None
        assert reply.choices[0].logprobs.top_logprobs == [{"\ufffd": -1.0, "x": -3.0}]


def test_tokens_of_equal_texts_can_be_told_apart_by_id() -> None:
    options: Any = {"max_tokens": 1, "extra_body": {"return_tokens_as_token_ids": True}}
    with served(Alike("x")) as running:
        reply = running.openai().completions.create(model="tiny", prompt="Hi", logprobs=2, **options)
        chat = running.openai().chat.completions.create(
            model="tiny", messages=USER, logprobs=True, top_logprobs=2, **options
        )
    names = {"token_id:195": -1.0, "token_id:196": -2.0, "token_id:120": -3.0}
    assert reply.choices[0].logprobs is not None
    assert (reply.choices[0].logprobs.tokens, reply.choices[0].logprobs.top_logprobs) == (["token_id:120"], [names])
    shown = VllmReader().read(reply.model_dump()).logprobs
    assert shown == (TokenLogprobs(-3.0, ((195, -1.0), (196, -2.0), (120, -3.0))),), "as upstream engines are read"
    assert chat.choices[0].logprobs is not None
    [token] = chat.choices[0].logprobs.content or []
    assert [token.token, *(one.token for one in token.top_logprobs)] == ["token_id:120", "token_id:195", "token_id:196"]


def test_whole_text_and_usage(shared: Served) -> None:
    reply = shared.openai().chat.completions.create(model="tiny", messages=USER)
    assert reply.choices[0].message.content == TEXT
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage is not None
    assert reply.usage.prompt_tokens == len("user:Hi\n")
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
    assert reply.usage.completion_tokens == len(TEXT.encode()) + 1
    assert reply.usage.prompt_tokens_details is not None
    assert reply.usage.prompt_tokens_details.cached_tokens == 2
    assert reply.usage.completion_tokens_details is None


def test_chunks_are_one_per_step_and_hold_whole_characters_only(shared: Served) -> None:
    stream: Any = shared.openai().chat.completions.create(model="tiny", messages=USER, stream=True)
    texts = [chunk.choices[0].delta.content or "" for chunk in stream]
    assert "".join(texts) == TEXT
    assert not any("\ufffd" in text for text in texts)
    assert len(texts) <= len(TEXT.encode()) // 3 + 1


def test_usage_is_absent_unless_asked_for(shared: Served) -> None:
    stream = shared.openai().completions.create(model="tiny", prompt="Hi", stream=True)
    chunks = list(stream)
    assert all("usage" not in chunk.model_fields_set and chunk.choices for chunk in chunks)


def test_stop_strings_never_leak_and_end_an_engine_that_goes_on() -> None:
    with served(FakeEngine(step=2, hold_after=8)) as running:
        reply = running.openai().completions.create(model="tiny", prompt="Hi", stop="world", max_tokens=40)
        assert reply.choices[0].text == "Grüße, "
        assert reply.choices[0].finish_reason == "stop"
        assert reply.choices[0].to_dict()["stop_reason"] == "world"
        assert running.engine.aborted


def test_a_prediction_that_is_longer_than_any_answer_is_cut(shared: Served) -> None:
    longest = shared.engine.info.max_model_len
    prediction: Any = {"type": "content", "content": "x" * (longest + 1)}
    shared.openai().chat.completions.create(model="tiny", messages=USER, prediction=prediction)
    assert len(shared.engine.requests[-1].prediction_token_ids) == longest


def test_prediction_is_counted_only_where_it_was_given(shared: Served) -> None:
    create: Any = shared.openai().chat.completions.create
    reply = create(
        model="tiny",
        messages=USER,
        prediction={"type": "content", "content": [{"type": "text", "text": "Grü"}, {"type": "text", "text": "ße"}]},
    )
    assert shared.engine.requests[-1].prediction_token_ids == tuple("Grüße".encode())
    assert reply.usage is not None
    assert reply.usage.completion_tokens_details is not None
    assert reply.usage.completion_tokens_details.accepted_prediction_tokens == 5
    assert reply.usage.completion_tokens_details.rejected_prediction_tokens == 2
    assert reply.usage.completion_tokens == len(TEXT.encode()) + 1 + 2


def test_parameters_reach_the_engine(shared: Served) -> None:
    shared.openai().completions.create(
        model="tiny",
        prompt=[[72, 105]],
        seed=7,
        temperature=0.5,
        max_tokens=9,
        stop=["x"],
        logit_bias={"65": 1},
        extra_body={
            "top_k": 4,
            "min_p": 0.1,
            "repetition_penalty": 1.2,
            "min_tokens": 2,
            "ignore_eos": True,
            "stop_token_ids": [9],
            "priority": -1,
            "speculation": {"mode": "off", "max_depth": 3, "proposer": "suffix"},
        },
    )
    request = shared.engine.requests[-1]
    assert request.prompt_token_ids == (72, 105)
    assert request.priority == -1
    params = request.params
    assert (params.seed, params.temperature, params.max_tokens, params.stop) == (7, 0.5, 9, ("x",))
    assert (params.top_k, params.min_p, params.repetition_penalty, params.min_tokens) == (4, 0.1, 1.2, 2)
    assert params.ignore_eos
    assert params.stop_token_ids == (9,)
    assert params.logit_bias == ((65, 1.0),)
    assert not request.speculation.enabled
    assert request.speculation.num_speculative_tokens == 3
    assert request.speculation.proposers == ("suffix",)


def test_defaults(shared: Served) -> None:
    client = shared.openai()
    client.completions.create(model="tiny", prompt="Hi")
    assert shared.engine.requests[-1].params.max_tokens == 16
    client.chat.completions.create(model="tiny", messages=USER)
    one = shared.engine.requests[-1]
    assert one.params.max_tokens == 512 - len("user:Hi\n")
    assert one.speculation.enabled
    client.chat.completions.create(model="tiny", messages=USER)
    assert shared.engine.requests[-1].params.seed != one.params.seed


def test_values_that_ask_for_nothing_are_accepted(shared: Served) -> None:
    shared.openai().chat.completions.create(
        model="tiny",
        messages=[{"role": "developer", "content": "Be brief."}, {"role": "assistant", "content": "", "refusal": None}],
        response_format={"type": "text"},
        tools=[],
        store=False,
        extra_body={"echo": False, "temperature": None, "function_call": None},
    )
    assert bytes(shared.engine.requests[-1].prompt_token_ids) == b"system:Be brief.\nassistant:\n"


@pytest.mark.parametrize("more", [{"top_p": 0}, {"seed": -1}, {"seed": -(2**63)}])
def test_the_ranges_of_openais_specification_are_taken(shared: Served, more: dict[str, float]) -> None:
    shared.openai().chat.completions.create(model="tiny", messages=USER, extra_body=more)
    params = shared.engine.requests[-1].params
    assert all(getattr(params, name) == value for name, value in more.items())


@pytest.mark.parametrize("stream", [False, True])
def test_metrics_on_request(shared: Served, stream: bool) -> None:
    reply: Any = shared.openai().chat.completions.create(
        model="tiny", messages=USER, stream=stream, extra_body={"speculation": {"metrics": True}}
    )
    metrics = (list(reply)[-1] if stream else reply).to_dict()["metrics"]
    assert metrics["speculative_decoding"] == {
        "mean_acceptance_length": 2.0,
        "draft_acceptance_rate": 0.5,
        "acceptance_histogram": [1, 1, 1, 0],
        "num_spec_steps": 3,
        "num_accepted_draft_tokens": 3,
        "num_draft_tokens": 6,
        "num_spec_tokens": 3,
        "proposers": {"suffix": {"num_accepted_draft_tokens": 3, "num_draft_tokens": 6}},
    }
    assert metrics["effective"] == {"mode": "on", "reason": "speculating", "plan_version": 3}
    assert metrics["time_to_first_token_ms"] == pytest.approx(200.0, abs=40.0)


def test_models_and_served_names(shared: Served) -> None:
    assert [model.id for model in shared.openai().models.list()] == ["tiny"]
    assert shared.openai().models.retrieve("tiny").id == "tiny"
