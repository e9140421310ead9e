"""The APIs of upstream engines: what they are asked, and what their chunks mean."""

from collections.abc import Mapping
from typing import Any

import pytest

from prolepsis.adapters.upstream.api import Api, Chunk, UpstreamCall, UpstreamFault, finish_reason, payload
from prolepsis.core.config import UpstreamApi
from prolepsis.core.requests import GrammarSpec, SamplingParams
from prolepsis.core.stats import ProposerCounts
from tests.adapters.upstream.fakes import APIS, EVENTS, api_of

PARAMS = SamplingParams(temperature=0.7, top_k=5, top_p=0.9, min_p=0.1, max_tokens=9, seed=3, stop=("end",))


def read(api: Api, events: list[dict[str, Any]]) -> list[Chunk]:
    reader = api.reader()
    return [reader.read(event) for event in events]


@pytest.mark.parametrize("name", APIS)
def test_tokens_text_end_and_drafts_are_read(name: UpstreamApi) -> None:
    chunks = read(api_of(name), EVENTS[name](b"hello!", (3, 12, 4)))
    assert [token for chunk in chunks for token in chunk.token_ids] == list(b"hello!")
    assert "".join(chunk.text for chunk in chunks) == "hello!"
    assert [chunk.finish for chunk in chunks if chunk.finish] == ["stop"]
    [drafts] = [chunk.drafts for chunk in chunks if chunk.drafts is not None]
    num_drafts = 0 if name == "llama.cpp" else 3  # which says tokens only
    assert drafts == ProposerCounts(num_drafts=num_drafts, num_draft_tokens=12, num_accepted=4)


@pytest.mark.parametrize(
    ("name", "accepted", "positions"),
    [
        ("vllm", [1, 0, 2], [[3, 2], [3, 2]]),
        ("vllm", [0, 0, 0], [[0, 0], [0, 0]]),
        ("sglang", [1, 0, 2], [[3, 2], [3, 2]]),
        ("sglang", [3], [[3, 0]]),  # it ends at the most that were accepted
        ("sglang", [], []),
        ("sglang", [3, 1], []),  # more than there were
        ("llama.cpp", [1, 0, 2], []),
    ],
)
def test_histograms_say_what_was_accepted_by_position(
    name: UpstreamApi, accepted: list[int], positions: list[list[int]]
) -> None:
    *_, last = read(api_of(name), EVENTS[name](b"hello!", (3, 12, 4), accepted))
    assert last.drafts is not None
    assert last.drafts.per_position == positions


def test_histograms_by_length_count_each_position_as_often_as_it_was_drafted() -> None:
    *before, last = EVENTS["vllm"](b"hello!", (7, 8, 5), [3, 3, 1, 0])
    lengths = {"0": [1], "1": [1, 2], "2": [1, 1, 1]}
    last["metrics"]["speculative_decoding"]["acceptance_histogram_by_draft_length"] = lengths
    *_, chunk = read(api_of("vllm"), [*before, last])
    assert chunk.drafts is not None
    assert chunk.drafts.per_position == [[6, 4], [3, 1]]


@pytest.mark.parametrize(("name", "finish"), [("vllm", "length"), ("sglang", "length"), ("llama.cpp", "limit")])
def test_an_answer_that_is_long_enough_says_so(name: UpstreamApi, finish: str) -> None:
    chunks = read(api_of(name), EVENTS[name](b"hello!", None, finish=finish))
    assert [chunk.finish for chunk in chunks if chunk.finish] == ["length"]


def test_what_is_not_said_of_drafts_is_not_known() -> None:
    for name in APIS:
        [*_, last] = read(api_of(name), EVENTS[name](b"hello!", None))
        assert last.drafts == (ProposerCounts() if name == "llama.cpp" else None), name


def test_sglang_may_send_new_tokens_only() -> None:
    ends = {"finish_reason": {"type": "stop"}, "completion_tokens": 5}
    events = [
        {"text": "he", "output_ids": [104, 101], "meta_info": {"completion_tokens": 2, "finish_reason": None}},
        {"text": "llo", "output_ids": [108, 108, 111], "meta_info": ends},
    ]
    chunks = read(api_of("sglang"), events)
    assert [chunk.token_ids for chunk in chunks] == [(104, 101), (108, 108, 111)]
    assert "".join(chunk.text for chunk in chunks) == "hello"


def test_llamacpp_leaves_out_the_first_tokens_of_a_character() -> None:
    wave = "👋".encode()
    events = [
        {"content": "a", "tokens": [97], "stop": False, "tokens_predicted": 1},
        {"content": "👋", "tokens": [wave[-1]], "stop": False, "tokens_predicted": 5},
        {"content": "b", "tokens": [98], "stop": False, "tokens_predicted": 6},
    ]
    assert [chunk.token_ids for chunk in read(api_of("llama.cpp"), events)] == [(97,), tuple(wave), (98,)]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "vllm",
            {
                "top_k": 5,
                "min_p": 0.1,
                "seed": 3,
                "stop": ["end"],
                "prompt": [1, 2],
                "cache_salt": "salt",
                "priority": 2,
            },
        ),
        ("sglang", {"input_ids": [1, 2], "extra_key": "salt", "priority": -2}),
        ("llama.cpp", {"prompt": [1, 2], "n_predict": 9, "cache_prompt": False, "repeat_last_n": 11}),
    ],
)
def test_what_is_asked(name: UpstreamApi, expected: Mapping[str, object]) -> None:
    body = api_of(name).body(UpstreamCall("m", (1, 2), PARAMS, priority=2, cache_salt="salt"))
    assert {key: body.get(key) for key in expected} == expected
    assert body["stream"] is True


def test_no_limit_on_the_likeliest_tokens_is_said_as_each_engine_wants_it() -> None:
    ask = UpstreamCall("m", (1,), SamplingParams(max_tokens=9))
    assert api_of("vllm").body(ask)["top_k"] == 0
    assert api_of("sglang").body(ask)["sampling_params"]["top_k"] == -1
    assert api_of("llama.cpp").body(ask)["top_k"] == 0


def test_constraints_go_where_each_engine_reads_them() -> None:
    schema = GrammarSpec("json_schema", '{"type": "object"}')
    ask = UpstreamCall("m", (1,), PARAMS, schema)
    assert api_of("vllm").body(ask)["structured_outputs"] == {"json": {"type": "object"}}
    assert api_of("sglang").body(ask)["sampling_params"]["json_schema"] == schema.source
    assert api_of("llama.cpp").body(ask)["json_schema"] == {"type": "object"}
    choice = api_of("vllm").body(UpstreamCall("m", (1,), PARAMS, GrammarSpec("choice", '["a", "b"]')))
    assert choice["structured_outputs"] == {"choice": ["a", "b"]}


@pytest.mark.parametrize("line", ["", ": ping", "event: done", "data: [DONE]", "id: 3"])
def test_lines_without_data(line: str) -> None:
    assert payload(line) is None


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("data: {", "no JSON"),
        ("data: [1]", "a JSON object"),
        ('data: {"error": {"message": "out of memory"}}', "out of memory"),
        ('error: {"code": 500, "message": "slot is gone"}', "slot is gone"),
    ],
)
def test_an_engine_that_fails_in_a_stream_is_heard(line: str, told: str) -> None:
    with pytest.raises(UpstreamFault, match=told):
        payload(line)


def test_sglang_that_gives_a_request_up_is_heard() -> None:
    meta = {"completion_tokens": 0, "finish_reason": {"type": "abort", "message": "retracted"}}
    with pytest.raises(UpstreamFault, match="retracted"):
        api_of("sglang").reader().read({"output_ids": [], "meta_info": meta})


@pytest.mark.parametrize(("said", "means"), [("stop", "stop"), ("length", "length"), ("repetition", "length")])
def test_only_a_stop_is_a_stop(said: str, means: str) -> None:
    assert finish_reason(said) == means


@pytest.mark.parametrize("said", ["abort", "error"])
def test_vllm_that_gives_a_request_up_is_heard(said: str) -> None:
    with pytest.raises(UpstreamFault, match="gave it up"):
        api_of("vllm").reader().read({"choices": [{"token_ids": [1], "text": "a", "finish_reason": said}]})
