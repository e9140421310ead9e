"""Prompts that are echoed, scored and cut to length, in vLLM's shapes; streams equal their whole twins."""

import json
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from tests.fake_client import INFO
from tests.server.conftest import Served
from tests.server.fakes import END, FakeEngine

Connect = Callable[[FakeEngine], httpx2.AsyncClient]
PROMPT = "Ö é"
NUM_BYTES = len(PROMPT.encode())
BASE: dict[str, Any] = {"model": "tiny", "prompt": PROMPT}
CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
OF_PROMPT = {"65": {"logprob": -0.5, "rank": 1, "decoded_token": "A"}}


async def choice(http: httpx2.AsyncClient, **changes: Any) -> dict[str, Any]:
    response = await http.post("/v1/completions", json=BASE | changes)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()["choices"][0]
    return found


@pytest.mark.parametrize("prompt", [PROMPT, list(PROMPT.encode())])
async def test_an_echoed_prompt_has_log_probabilities_and_places_of_its_bytes(client: Connect, prompt: Any) -> None:
    engine = FakeEngine("ü!")
    shown = await choice(client(engine), prompt=prompt, echo=True, logprobs=1)
    assert shown["text"] == f"{PROMPT}ü!"
    logprobs = shown["logprobs"]
    places = [i for i, character in enumerate(shown["text"]) for _ in character.encode()]
    assert logprobs["text_offset"] == [*places, len(shown["text"])], "the last is the control token that ended it"
    assert logprobs["tokens"][:4] == ["\ufffd", "\ufffd", " ", "\ufffd"]
    assert logprobs["token_logprobs"] == [None, *[-0.125] * (NUM_BYTES - 1), *[-0.25] * 4]
    assert logprobs["top_logprobs"][:2] == [None, {"A": -0.5, "\ufffd": -0.125}]
    assert list(logprobs["top_logprobs"][1]) == ["\ufffd", "A"], "the token that is there stands first"
    assert engine.requests[0].params.prompt_logprobs == 1
    assert shown["prompt_logprobs"] is None


async def test_an_echo_without_log_probabilities_is_text_only(client: Connect) -> None:
    engine = FakeEngine("ok")
    shown = await choice(client(engine), echo=True)
    assert (shown["text"], shown["logprobs"]) == (f"{PROMPT}ok", None)
    assert engine.requests[0].params.prompt_logprobs is None


@pytest.mark.parametrize(
    ("prompt", "changes", "text"),
    [
        ([72, 105, END], {}, "Hi<end>"),
        ([72, 105, END], {"skip_special_tokens": True}, "Hi"),
        ([[72, 105, END], [72]], {"n": 2}, "Hi<end>"),
    ],
)
async def test_a_prompt_given_as_tokens_is_echoed_with_its_control_tokens(
    client: Connect, prompt: Any, changes: dict[str, Any], text: str
) -> None:
    shown = await choice(client(FakeEngine("ok")), prompt=prompt, echo=True, logprobs=0, **changes)
    assert shown["text"] == f"{text}ok"
    assert shown["logprobs"]["text_offset"] == [0, 1, 2, len(text), len(text) + 1, len(text) + 2]


async def test_what_is_not_asked_for_is_null_in_whole_answers_and_not_in_chunks(client: Connect) -> None:
    http, named = client(FakeEngine("ok")), {"prompt_logprobs": None, "prompt_token_ids": None}
    assert (await choice(http)).items() >= {**named, "token_ids": None}.items()
    chat = (await http.post("/v1/chat/completions", json=CHAT)).json()
    assert chat.items() >= named.items()
    assert chat["choices"][0]["token_ids"] is None
    for path, body in (("/v1/completions", BASE), ("/v1/chat/completions", CHAT)):
        chunks = (await http.post(path, json=body | {"stream": True})).text
        assert chunks.count('"choices"') > 0
        assert not any(name in chunks for name in (*named, "token_ids"))


SAID = {"role": "assistant", "content": "An apple "}


@pytest.mark.parametrize(
    ("messages", "changes", "content"),
    [
        ([*CHAT["messages"], SAID], {"continue_final_message": True}, "An apple a day"),
        ([*CHAT["messages"], SAID], {"n": 2}, "An apple a day"),
        (CHAT["messages"], {}, "a day"),
        ([SAID, *CHAT["messages"]], {}, "a day"),
    ],
)
async def test_a_chat_echoes_what_its_assistant_has_begun(
    client: Connect, messages: list[dict[str, str]], changes: dict[str, Any], content: str
) -> None:
    http, body = client(FakeEngine("a day")), CHAT | {"messages": messages, "echo": True, **changes}
    whole = (await http.post("/v1/chat/completions", json=body)).json()
    assert [one["message"]["content"] for one in whole["choices"]] == [content] * changes.get("n", 1)
    lines = (await http.post("/v1/chat/completions", json=body | {"stream": True})).text.split("\n\n")
    parts = [json.loads(line.removeprefix("data: "))["choices"][0] for line in lines if line.startswith("data: {")]
    for one in whole["choices"]:
        mine = [part["delta"].get("content", "") for part in parts if part["index"] == one["index"]]
        assert "".join(mine) == content


async def test_echoed_tokens_are_named_by_their_ids_where_that_is_asked_for(client: Connect) -> None:
    shown = await choice(client(FakeEngine("x")), echo=True, logprobs=1, return_tokens_as_token_ids=True)
    assert shown["logprobs"]["tokens"] == [f"token_id:{byte}" for byte in [*f"{PROMPT}x".encode(), 256]]
    assert shown["logprobs"]["top_logprobs"][1] == {"token_id:65": -0.5, "token_id:150": -0.125}


async def test_nothing_is_generated_where_max_tokens_is_0(client: Connect) -> None:
    engine = FakeEngine()
    shown = await choice(client(engine), echo=True, logprobs=0, max_tokens=0)
    assert (shown["text"], shown["finish_reason"]) == (PROMPT, "length")
    assert shown["logprobs"]["token_logprobs"] == [None, *[-0.125] * (NUM_BYTES - 1)]
    assert engine.requests[0].params.max_tokens == 0
    usage = (await client(engine).post("/v1/completions", json=BASE | {"max_tokens": 0})).json()["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (NUM_BYTES, 0)


@pytest.mark.parametrize("n", [1, 2])
async def test_prompt_logprobs_are_lists_of_maps_by_token_id(client: Connect, n: int) -> None:
    http, asked = client(FakeEngine()), {"prompt_logprobs": 1, "n": n}
    reply = (await http.post("/v1/completions", json=BASE | asked)).json()
    own = {"150": {"logprob": -0.125, "rank": 4, "decoded_token": "\ufffd"}, **OF_PROMPT}
    for one in reply["choices"]:
        assert one["prompt_logprobs"][:2] == [None, own]
        assert len(one["prompt_logprobs"]) == NUM_BYTES
        assert one["logprobs"] is None
    chat = (await http.post("/v1/chat/completions", json=CHAT | asked)).json()
    assert chat["prompt_logprobs"][1] == {"115": {"logprob": -0.125, "rank": 4, "decoded_token": "s"}, **OF_PROMPT}
    assert len(chat["prompt_logprobs"]) == len("user:Hi\n")
    assert "prompt_logprobs" not in chat["choices"][0]


@pytest.mark.parametrize(
    "options",
    [
        {"echo": True},
        {"echo": True, "logprobs": 2, "n": 2},
        {"echo": True, "logprobs": 2, "prompt_logprobs": 1, "max_tokens": 0},
        {"echo": True, "logprobs": 0, "speculation": {"emit": "token"}},
        {"prompt_logprobs": 2},
    ],
)
def test_a_stream_equals_its_twin(shared: Served, options: dict[str, Any]) -> None:
    with httpx2.Client(base_url=shared.url) as http:
        whole = http.post("/v1/completions", json=BASE | options).json()
    create: Any = shared.openai().completions.create
    extra = {name: options[name] for name in ("prompt_logprobs", "speculation") if name in options}
    given = {name: value for name, value in options.items() if name not in extra}
    chunks = list(create(**BASE, **given, stream=True, extra_body=extra))
    for one in whole["choices"]:
        mine = [chunk.choices[0].model_dump() for chunk in chunks if chunk.choices[0].index == one["index"]]
        assert "".join(part["text"] for part in mine) == one["text"]
        assert [part["prompt_logprobs"] for part in mine if part.get("prompt_logprobs")] == [
            scores for scores in [one.get("prompt_logprobs")] if scores
        ]
        for name, values in (one["logprobs"] or {}).items():
            assert [value for part in mine for value in part["logprobs"][name]] == values


async def test_a_chats_stream_has_the_prompts_in_its_first_chunk(client: Connect) -> None:
    http, asked = client(FakeEngine()), CHAT | {"prompt_logprobs": 0, "n": 2}
    whole = (await http.post("/v1/chat/completions", json=asked)).json()
    lines = (await http.post("/v1/chat/completions", json=asked | {"stream": True})).text.split("\n\n")
    chunks = [
        httpx2.Response(200, text=line.removeprefix("data: ")).json() for line in lines if line.startswith("data: {")
    ]
    assert [chunk["prompt_logprobs"] for chunk in chunks if "prompt_logprobs" in chunk] == [whole["prompt_logprobs"]]


async def test_named_tokens_and_the_whole_vocabulary_are_asked_of_the_engine(client: Connect) -> None:
    engine = FakeEngine()
    http = client(engine)
    await choice(http, logprob_token_ids=[5, 6], max_tokens=1)
    await choice(http, logprobs=-1, prompt_logprobs=-1)
    chat = await http.post("/v1/chat/completions", json=CHAT | {"logprobs": True, "top_logprobs": -1, "max_tokens": 1})
    assert chat.status_code == 200
    found = [(one.params.logprobs, one.params.logprob_token_ids, one.params.prompt_logprobs) for one in engine.requests]
    assert found == [(0, (5, 6), None), (-1, (), -1), (-1, (), None)]


async def test_the_tokens_of_an_answer_may_be_restricted(client: Connect) -> None:
    engine = FakeEngine()
    http = client(engine)
    await choice(http, allowed_token_ids=[5, 6], max_tokens=1)
    assert [one.params.allowed_token_ids for one in engine.requests] == [(5, 6)]
    refused = await http.post("/v1/completions", json={"prompt": "x", "allowed_token_ids": [-1]})
    assert refused.status_code == 400


async def test_each_choice_has_its_prompts_tokens_where_they_are_asked_for(client: Connect) -> None:
    body = {"prompt": [[5, 6], [7]], "n": 2, "max_tokens": 1, "return_token_ids": True}
    reply = (await client(FakeEngine()).post("/v1/completions", json=body)).json()
    assert [one["prompt_token_ids"] for one in reply["choices"]] == [[5, 6], [5, 6], [7], [7]]
    assert reply["prompt_token_ids"] == [5, 6]


@pytest.mark.parametrize(
    ("most", "max_tokens", "kept"), [(3, 4, 3), (900, 4, 600), (-1, 100, 412), (-1, 0, 512), (1, None, 1)]
)
async def test_the_last_tokens_of_a_long_prompt_are_kept(
    client: Connect, most: int, max_tokens: int | None, kept: int
) -> None:
    engine = FakeEngine()
    assert INFO.max_model_len == 512
    tokens = [i % 100 for i in range(600)]
    body = {"model": "tiny", "prompt": tokens, "truncate_prompt_tokens": most, "max_tokens": max_tokens}
    response = await client(engine).post("/v1/completions", json=body)
    if kept > 512:
        assert response.json()["error"]["code"] == "context_length_exceeded"
    else:
        assert response.status_code == 200, response.text
        assert list(engine.requests[0].prompt_token_ids) == tokens[-kept:]


@pytest.mark.parametrize(("side", "kept"), [(None, b"Hi\n"), ("left", b"Hi\n"), ("right", b"use")])
async def test_a_chat_is_cut_too(client: Connect, side: str | None, kept: bytes) -> None:
    engine, cut = FakeEngine(), {"truncate_prompt_tokens": 3, "truncation_side": side}
    response = await client(engine).post("/v1/chat/completions", json=CHAT | cut)
    assert (response.status_code, response.headers.get("warning")) == (200, None)
    assert bytes(engine.requests[0].prompt_token_ids) == kept


@pytest.mark.parametrize("most", [-1, 600, None])
async def test_a_long_prompt_may_keep_its_first_tokens(client: Connect, most: int | None) -> None:
    engine, tokens = FakeEngine(), [i % 100 for i in range(500)]
    cut = {"prompt": tokens, "truncate_prompt_tokens": most, "truncation_side": "right", "max_tokens": 100}
    response = await client(engine).post("/v1/completions", json=BASE | cut)
    if most == -1:
        assert list(engine.requests[0].prompt_token_ids) == tokens[:412]
    else:
        assert response.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    ("path", "changes", "param"),
    [
        ("/v1/completions", {"prompt_logprobs": 21}, "prompt_logprobs"),
        ("/v1/completions", {"logprobs": -2}, "logprobs"),
        ("/v1/completions", {"logprob_token_ids": [INFO.vocab_size]}, "logprob_token_ids"),
        ("/v1/completions", {"truncate_prompt_tokens": 0}, "prompt"),
        ("/v1/completions", {"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ("/v1/chat/completions", {"max_tokens": 0}, "max_tokens"),
        ("/v1/verify/chat/completions", {"echo": True}, "echo"),
        ("/v1/responses", {"prompt_logprobs": 1}, "prompt_logprobs"),
        ("/v1/verify/completions", {"echo": True}, "echo"),
        ("/v1/verify/completions", {"prompt_logprobs": 1}, "prompt_logprobs"),
        ("/v1/verify/completions", {"max_tokens": 0}, "max_tokens"),
    ],
)
async def test_what_cannot_be_is_a_400_that_names_it(
    client: Connect, path: str, changes: dict[str, Any], param: str
) -> None:
    body = {
        "/v1/chat/completions": CHAT,
        "/v1/verify/chat/completions": CHAT,
        "/v1/responses": {"model": "tiny", "input": "Hi"},
    }.get(path, BASE)
    response = await client(FakeEngine()).post(path, json=body | changes)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param), response.text


async def test_the_tokenizer_is_described(client: Connect) -> None:
    response = await client(FakeEngine()).get("/tokenizer_info")
    found = {name: value for name, value in response.json().items() if value is not None}
    assert found == {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 512,
        "eos_token": "<end>",
        "chat_template": "roles and text",
    }
