"""What goes beyond OpenAI's API: speculation, vLLM's parameters, tokenize, health in depth."""

import asyncio
import json
import socket
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from prolepsis import __version__
from prolepsis.control.policy.decision import decide_alone
from prolepsis.control.web.caller import Caller, Role
from prolepsis.control.web.errors import RequestRefused
from prolepsis.core.config import ServerConfig
from prolepsis.core.messages import Abort
from prolepsis.core.requests import SpecMode, SpeculationChoice, cache_salt_of
from prolepsis.server.openai.replies import MetricsReply
from prolepsis.server.preparing.bodies import SpeculationBody
from prolepsis.server.preparing.speculation import requested_speculation
from prolepsis.server.run import bind
from tests.server.conftest import Served, served
from tests.server.fakes import END, ByteTokenizer, FakeEngine

Connect = Callable[[FakeEngine], httpx2.AsyncClient]
USER: Any = [{"role": "user", "content": "Hi"}]
CHAT: dict[str, Any] = {"model": "tiny", "messages": USER}


def caller(*roles: Role) -> Caller:
    return Caller("k", "t", frozenset(roles), "standard")


@pytest.mark.parametrize("mode", ["auto", "off", None])
def test_a_client_may_turn_speculation_off(mode: SpecMode | None) -> None:
    body = SpeculationBody(mode=mode, emit="token", metrics=True)
    decision = decide_alone(requested_speculation(body, {}, caller("client"), ("suffix",)))
    assert decision.choice.enabled == (mode != "off")
    assert (decision.emit, decision.requested.metrics, decision.choice.mode) == ("token", True, mode or "auto")


@pytest.mark.parametrize(
    ("body", "headers", "param"),
    [
        (SpeculationBody(mode="always"), {}, "speculation.mode"),
        (SpeculationBody(mode="shadow"), {}, "speculation.mode"),
        (SpeculationBody(max_depth=0), {}, "speculation.max_depth"),
        (SpeculationBody(proposer="suffix"), {}, "speculation.proposer"),
        (None, {"x-spec-mode": "always"}, "x-spec-mode"),
    ],
)
def test_forcing_needs_a_role(body: SpeculationBody | None, headers: dict[str, str], param: str) -> None:
    with pytest.raises(RequestRefused) as refused:
        requested_speculation(body, headers, caller("client", "viewer"), ("suffix",))
    assert (refused.value.status, refused.value.param) == (403, param)
    assert "operator" in str(refused.value)
    for role in ("operator", "admin"):
        requested_speculation(body, headers, caller("client", role), ("suffix",))


async def test_the_mode_may_come_as_a_header(client: Connect) -> None:
    engine = FakeEngine()
    http = client(engine)
    for headers, body, status in (
        ({"x-spec-mode": "off"}, {}, 200),
        ({"x-spec-mode": "always"}, {"speculation": {"mode": "always"}}, 200),
        ({"x-spec-mode": "fast"}, {}, 400),
        ({"x-spec-mode": "always"}, {"speculation": {"mode": "off"}}, 400),
    ):
        response = await http.post("/v1/chat/completions", json={**CHAT, **body}, headers=headers)
        assert response.status_code == status, response.text
    assert [r.speculation.mode for r in engine.requests] == ["off", "always"]


@pytest.mark.parametrize(
    ("in_body", "header", "agreed"),
    [
        (None, None, False),
        (True, None, True),
        (None, "yes", True),
        (True, "yes", True),
        (False, None, False),
        (False, "yes", False),
        (True, "no", False),
        (None, "no", False),
    ],
)
def test_a_caller_agrees_to_learning_in_body_or_header_and_a_no_outweighs_a_yes(
    in_body: bool | None, header: str | None, agreed: bool
) -> None:
    for body in (SpeculationBody(learn=in_body), *([None] if in_body is None else [])):
        headers = {} if header is None else {"x-spec-learn": header}
        assert requested_speculation(body, headers, caller("client"), ()).learn is agreed


async def test_consent_by_header_is_yes_or_no(client: Connect) -> None:
    reply = await client(FakeEngine()).post("/v1/chat/completions", json=CHAT, headers={"x-spec-learn": "true"})
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert (error["param"], error["message"]) == ("x-spec-learn", "x-spec-learn is 'true'; allowed: yes, no")


async def test_a_caller_hears_where_nothing_is_learnt(client: Connect) -> None:
    http = client(FakeEngine())
    for stream in (False, True):
        agreed = await http.post(
            "/v1/chat/completions", json={**CHAT, "stream": stream, "speculation": {"learn": True}}
        )
        assert agreed.headers["warning"].startswith('299 - "nothing is learnt: that takes a rule with learning')
        assert "warning" not in (await http.post("/v1/chat/completions", json={**CHAT, "stream": stream})).headers


async def test_shadow_is_asked_of_the_engine_and_its_figures_are_apart(client: Connect) -> None:
    engine = FakeEngine()
    body = CHAT | {"speculation": {"mode": "shadow", "metrics": True}}
    response = await client(engine).post("/v1/chat/completions", json=body)
    assert engine.requests[0].speculation == SpeculationChoice("shadow")
    figures = response.json()["metrics"]
    assert figures["effective"] == {"mode": "shadow", "reason": "compared", "plan_version": 3}
    assert figures["speculative_decoding"]["num_draft_tokens"] == 0
    would_be = figures["shadow_speculative_decoding"]
    assert (would_be["num_draft_tokens"], would_be["num_accepted_draft_tokens"]) == (6, 3)
    assert response.headers["x-spec-effective"] == "mode=shadow;reason=compared;plan=3"
    MetricsReply.model_validate(figures)
    plain = await client(engine).post("/v1/chat/completions", json=CHAT | {"speculation": {"metrics": True}})
    assert "shadow_speculative_decoding" not in plain.json()["metrics"]


async def test_streams_say_what_is_known_at_start(client: Connect) -> None:
    http = client(FakeEngine())
    response = await http.post("/v1/chat/completions", json=CHAT | {"stream": True})
    assert response.headers["x-spec-effective"] == "mode=auto;reason=undecided"
    off = CHAT | {"stream": True, "speculation": {"mode": "off"}}
    response = await http.post("/v1/chat/completions", json=off)
    assert response.headers["x-spec-effective"] == "mode=off;reason=requested_off"
    shadow = CHAT | {"stream": True, "speculation": {"mode": "shadow"}}
    response = await http.post("/v1/chat/completions", json=shadow)
    assert response.headers["x-spec-effective"] == "mode=shadow;reason=undecided"


@pytest.mark.parametrize("given", [None, 2**62 + 1])
async def test_the_seed_that_was_drawn_makes_the_request_again(client: Connect, given: int | None) -> None:
    engine = FakeEngine()
    http, body = client(engine), CHAT | {"seed": given, "stream_options": {"include_usage": True}}
    whole = await http.post("/v1/chat/completions", json=CHAT | {"seed": given})
    streamed = await http.post("/v1/chat/completions", json=body | {"stream": True})
    response = await http.post("/v1/responses", json={"model": "tiny", "input": "Hi"})
    seeds = [request.params.seed for request in engine.requests]
    last = json.loads(streamed.text.split("data: ")[-2])
    assert [whole.json()["seed"], last["seed"], response.json()["seed"]] == seeds
    assert [int(reply.headers["x-seed"]) for reply in (whole, streamed, response)] == seeds
    assert seeds[0] == given if given is not None else seeds[0] < 2**53


async def test_metrics_of_several_samples_and_prompts_are_sums(client: Connect) -> None:
    body = {"model": "tiny", "prompt": ["Hi", "Hallo"], "n": 2, "speculation": {"metrics": True}}
    figures = (await client(FakeEngine()).post("/v1/completions", json=body)).json()["metrics"]
    MetricsReply.model_validate(figures)
    drafts = figures["speculative_decoding"]
    assert (drafts["num_spec_steps"], drafts["num_draft_tokens"], drafts["num_accepted_draft_tokens"]) == (6, 12, 6)
    assert drafts["acceptance_histogram"] == [2, 2, 2, 0]
    assert (round(figures["time_to_first_token_ms"], -2), figures["mean_itl_ms"]) == (200.0, None)


def test_emit_token_sends_each_token_alone(shared: Served) -> None:
    create: Any = shared.openai().completions.create
    options: dict[str, Any] = {"model": "tiny", "prompt": "Hi", "max_tokens": 40}
    whole = create(**options)
    assert not shared.engine.requests[-1].paced
    body = {"speculation": {"emit": "token"}, "return_token_ids": True}
    chunks = list(create(**options, stream=True, extra_body=body))
    assert shared.engine.requests[-1].paced, "the times of its steps are told"
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    assert all(len(chunk.choices[0].text) <= 1 for chunk in chunks)
    tokens = [token for chunk in chunks for token in chunk.choices[0].to_dict()["token_ids"]]
    assert tokens == [*shared.engine.text.encode(), END]


def test_several_prompts_in_one_request(shared: Served) -> None:
    create: Any = shared.openai().completions.create
    before = len(shared.engine.requests)
    options: dict[str, Any] = {"model": "tiny", "prompt": ["Hi", "Hallo"], "n": 2, "max_tokens": 9}
    whole = create(**options)
    chunks = list(create(**options, stream=True, stream_options={"include_usage": True}))
    prompts = [bytes(request.prompt_token_ids) for request in shared.engine.requests[before:]]
    assert prompts == [b"Hi", b"Hallo"] * 2
    assert [choice.index for choice in whole.choices] == [0, 1, 2, 3]
    for choice in whole.choices:
        mine = [c.choices[0] for c in chunks if c.choices and c.choices[0].index == choice.index]
        assert "".join(part.text for part in mine) == choice.text
    assert whole.usage.prompt_tokens == 7
    assert chunks[-1].usage == whole.usage
    assert len({request.request_id for request in shared.engine.requests}) == len(shared.engine.requests)


async def test_one_failing_prompt_fails_the_request(client: Connect) -> None:
    engine = FakeEngine(hold_after=1)
    asking = asyncio.create_task(client(engine).post("/v1/completions", json={"model": "tiny", "prompt": ["a", "b"]}))
    async with asyncio.timeout(60):
        while len(engine.requests) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
        engine.send(Abort(engine.requests[1].request_id))
        response = await asking
    assert response.status_code == 503
    assert engine.requests[0].request_id in engine.aborted


def test_text_options_of_vllm(shared: Served) -> None:
    create: Any = shared.openai().completions.create
    options: dict[str, Any] = {"model": "tiny", "prompt": "Hi", "stop": "world", "max_tokens": 40}
    assert create(**options, extra_body={"include_stop_str_in_output": True}).choices[0].text == "Grüße, world"
    stream = create(**options, stream=True, extra_body={"include_stop_str_in_output": True})
    assert "".join(chunk.choices[0].text for chunk in stream) == "Grüße, world"
    del options["stop"]
    assert create(**options, extra_body={"skip_special_tokens": False}).choices[0].text.endswith("done<end>")
    reply = create(**options, extra_body={"return_token_ids": True, "request_id": "mine-1"})
    assert reply.to_dict()["prompt_token_ids"] == list(b"Hi")
    assert reply.choices[0].to_dict()["token_ids"] == [*shared.engine.text.encode(), END]
    assert reply.id == "cmpl-mine-1"
    assert shared.engine.requests[-1].request_id != "cmpl-mine-1"


def test_continuous_usage(shared: Served) -> None:
    create: Any = shared.openai().chat.completions.create
    stream = create(**CHAT, stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True})
    counts = [chunk.usage.completion_tokens for chunk in stream]
    assert counts == sorted(counts)
    assert counts[0] > 0
    assert counts[-1] == len(shared.engine.text.encode()) + 1


def test_a_scope_is_one_tenants_with_one_salt() -> None:
    scopes = [cache_salt_of(tenant, salt) for tenant in ("", "a", "a:b", "1:a") for salt in (None, "b", "a:b", ":b")]
    assert scopes[0] == ""
    assert len(set(scopes)) == len(scopes)


def test_a_salt_makes_a_cache_salt_of(shared: Served) -> None:
    shared.openai().chat.completions.create(**CHAT, extra_body={"cache_salt": "s"})
    assert shared.engine.requests[-1].cache_salt == cache_salt_of("", "s") != ""


async def test_tokenize_and_back(client: Connect) -> None:
    http = client(FakeEngine())
    reply = (await http.post("/tokenize", json={"prompt": "Grü", "return_token_strs": True})).json()
    assert reply["tokens"] == list("Grü".encode())
    assert (reply["count"], reply["max_model_len"]) == (4, 512)
    assert reply["token_strs"][:2] == ["G", "r"]
    back = await http.post("/detokenize", json={"model": "tiny", "tokens": reply["tokens"]})
    assert back.json() == {"prompt": "Grü"}
    back = await http.post("/detokenize", json={"tokens": reply["tokens"]})
    assert back.json() == {"prompt": "Grü", "content": "Grü"}
    chat = (await http.post("/tokenize", json={"messages": USER})).json()
    assert bytes(chat["tokens"]) == b"user:Hi\n"
    assert chat["token_strs"] is None


class WithBegin(ByteTokenizer):
    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [*([1] if add_special_tokens else []), *text.encode()]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"prompt": "a"}, [1, *b"a"]),
        ({"prompt": "a", "add_special_tokens": False}, [*b"a"]),
        ({"content": "a"}, [*b"a"]),
        ({"content": "a", "add_special": True}, [1, *b"a"]),
        ({"content": "a", "add_special_tokens": True}, [1, *b"a"]),
        (
            {"content": "aü", "with_pieces": True},
            [{"id": 97, "piece": "a"}, {"id": 195, "piece": [195]}, {"id": 188, "piece": [188]}],
        ),
    ],
)
def test_tokenize_in_the_shapes_of_others(body: dict[str, object], expected: list[object]) -> None:
    with served(FakeEngine(), tokenizer=WithBegin()) as running:
        assert httpx2.post(f"{running.url}/tokenize", json=body).json()["tokens"] == expected


@pytest.mark.parametrize(
    ("route", "body", "status", "param"),
    [
        ("/tokenize", {}, 400, None),
        ("/tokenize", {"prompt": "a", "content": "a"}, 400, None),
        ("/tokenize", {"prompt": "a", "messages": USER}, 400, None),
        ("/tokenize", {"prompt": "a", "model": "gpt"}, 404, "model"),
        ("/tokenize", {"messages": USER, "add_special_tokens": True}, 400, "add_special_tokens"),
        ("/detokenize", {"tokens": [257]}, 400, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, 400, "tokens[0]"),
    ],
)
async def test_tokenize_refusals(client: Connect, route: str, body: object, status: int, param: str | None) -> None:
    response = await client(FakeEngine()).post(route, json=body)
    assert response.status_code == status
    assert response.json()["error"]["param"] == param


async def test_version_and_deep_health(client: Connect) -> None:
    engine = FakeEngine()
    http = client(engine)
    assert (await http.get("/version")).json() == {"version": __version__}
    replies = await asyncio.gather(*(http.get("/health/deep") for _ in range(5)))
    assert {reply.status_code for reply in replies} == {200}
    assert len(engine.requests) == 1, "those that ask within a second share one answer"
    assert engine.requests[0].params.max_tokens > 1, "tokens after the first are what may be drafted"
    assert engine.requests[0].speculation.mode == "auto"


def test_small_answers_do_not_wait_for_acknowledgements() -> None:
    with bind(ServerConfig(port=0)) as listener:  # asyncio turns Nagle's algorithm off only where it sees the protocol
        assert listener.proto == socket.IPPROTO_TCP
