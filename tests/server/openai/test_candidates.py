"""POST /v1/candidates: texts of a writer or of the target, what is left of them, and their order."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx2
import pytest

from prolepsis.control.traffic.feature import TrafficFeature
from prolepsis.core.config import LimitTerms, ServerConfig
from prolepsis.core.ended import RequestEnded
from prolepsis.core.events import Event, TokenLogprobs
from prolepsis.core.requests import GenerateRequest
from prolepsis.server.output.built_in import Patterns
from prolepsis.server.output.pipeline import LoadedPolicy
from tests.server.conftest import served
from tests.server.fake_writer import FakeWriter, writing
from tests.server.fakes import FakeEngine
from tests.waiting import wait_for
from tests.world.site import Site

BODY: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "writer": "small", "k": 3}


class Scoring(FakeEngine):
    """A text's tokens are the likelier, the more of them are `a`."""

    def _prompt_logprobs(self, request: GenerateRequest) -> tuple[TokenLogprobs, ...] | None:
        if request.params.prompt_logprobs is None:
            return None
        text = request.prompt_token_ids[request.params.scored_from :]
        return tuple(TokenLogprobs(math.log(0.9 if token == ord("a") else 0.3)) for token in text)


def config(writer: FakeWriter) -> ServerConfig:
    limits = LimitTerms(start_drafts=0)
    return ServerConfig(writers=(f"small={writer.url}",), max_body_bytes=65536, limits=limits, replay_sample=0.0)


async def candidates(
    writer: FakeWriter,
    /,
    engine: FakeEngine | None = None,
    policy: str | None = None,
    folder: Path = Path(),
    output: Sequence[LoadedPolicy] = (),
    **fields: object,
) -> httpx2.Response:
    site = Site(engine or Scoring(), config(writer), policy=policy, folder=folder, output=output)
    async with site.running() as http:
        return await http.post("/v1/candidates", json={**BODY, **fields})


async def test_texts_of_a_writer_are_ranked_by_the_target() -> None:
    engine = Scoring()
    with writing("bb", "aaab", "ab", "ab", " ") as writer:
        reply = await candidates(writer, engine, n=5, temperature=0.9, metadata={"a": "b"})
        body = reply.json()
        assert [(one["text"], one["num_tokens"]) for one in body["candidates"]] == [
            ("aaab", 4),
            ("ab", 2),
            ("bb", 2),
        ]
        assert body["candidates"][1]["score"] == pytest.approx(math.sqrt(0.9 * 0.3))
        assert body["num_dropped"] == {"duplicate": 1, "empty": 1}
        assert (body["choice"], body["why"], body["writer"], body["verified"]) == (0, None, "small", 1.0)
        assert body["metrics"]["writer_ms"] == pytest.approx(20)
        assert reply.headers["x-exactness"] == "lossy"
        [(path, asked)] = writer.asked
        assert path == "/v1/chat/completions"
        assert asked == {"messages": BODY["messages"], "temperature": 0.9, "n": 5}
    begin = b"user:Hi\n"
    assert [bytes(request.prompt_token_ids) for request in engine.requests] == [
        begin + text for text in (b"bb", b"aaab", b"ab")
    ]
    assert {(one.params.max_tokens, one.params.scored_from) for one in engine.requests} == {(0, len(begin))}


async def test_none_is_chosen_where_none_is_good_enough() -> None:
    with writing("bb", "ab") as writer:
        body = (await candidates(writer, k=1, n=2, at_least=0.6)).json()
        assert (body["choice"], body["why"]) == (None, "none_good_enough")
        assert [one["text"] for one in body["candidates"]] == ["ab"]


async def test_texts_without_the_form_asked_for_are_dropped() -> None:
    with writing("yes", "yes!", '{"a": 1}', '{"a":"x"}', "no") as writer:
        body = (await candidates(writer, n=5, structured_outputs={"choice": ["yes", "no"]})).json()
        assert {one["text"] for one in body["candidates"]} == {"yes", "no"}
        assert body["num_dropped"] == {"form": 3}
        assert writer.asked[0][1]["structured_outputs"] == {"choice": ["yes", "no"]}
        schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
        form = {"type": "json_schema", "json_schema": {"name": "it", "schema": schema}}
        body = (await candidates(writer, n=5, response_format=form)).json()
        assert [one["text"] for one in body["candidates"]] == ['{"a": 1}']


async def test_all_texts_may_be_dropped() -> None:
    with writing("maybe") as writer:
        body = (await candidates(writer, structured_outputs={"choice": ["yes"]})).json()
        assert (body["candidates"], body["choice"], body["why"]) == ([], None, "all_dropped")


async def test_output_policies_rewrite_and_stop_the_texts_of_a_writer() -> None:
    rewriting = [LoadedPolicy("secret", Patterns(patterns={"***": "a{3}"}), "closed", 1000.0, 64)]
    stopping = [LoadedPolicy("secret", Patterns(patterns={"***": "a{3}"}, stops=True), "closed", 1000.0, 64)]
    with writing("aaab", "ab") as writer:
        body = (await candidates(writer, output=rewriting, n=2, k=2)).json()
        assert {one["text"] for one in body["candidates"]} == {"***b", "ab"}
        body = (await candidates(writer, output=stopping, n=2, k=2)).json()
        assert [one["text"] for one in body["candidates"]] == ["ab"]
        assert body["num_dropped"] == {"policy": 1}


def test_the_end_of_a_connection_ends_the_scoring() -> None:
    class Held(FakeEngine):
        def _say(self, request: GenerateRequest) -> Iterable[Event | float | Exception]:
            yield from ()

    engine = Held()
    with writing("ab") as writer, served(engine, config(writer)) as running:
        with pytest.raises(httpx2.ReadTimeout):
            httpx2.post(f"{running.url}/v1/candidates", json=BODY, timeout=1.0)
        wait_for(lambda: engine.aborted)


async def test_texts_of_a_writer_are_no_evidence_and_nothing_of_them_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    heard, engine = list[RequestEnded](), Scoring()
    with writing("ab") as writer:
        site = Site(engine, config(writer).model_copy(update={"response_cache_bytes": 2**20}))
        monkeypatch.setattr(site.feature(TrafficFeature), "on_request_end", heard.append)
        async with site.running() as http:
            for _ in range(2):
                reply = await http.post(
                    "/v1/candidates", json={**BODY, "temperature": 0}, headers={"x-spec-learn": "yes"}
                )
                assert "x-response-cache" not in reply.headers
    assert [(ended.about.is_evidence, ended.about.learns) for ended in heard] == [(False, ""), (False, "")]
    assert len(engine.requests) == 2


async def test_a_writer_that_is_gone_is_named() -> None:
    with writing() as writer:
        pass
    reply = await candidates(writer)
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "upstream_unavailable")
    assert "'small'" in reply.json()["error"]["message"]


async def test_a_rule_keeps_texts_from_writers(tmp_path: Path) -> None:
    policy = "version: 1\ndefault: {mode: 'on'}\nrules:\n- {name: private, match: {domain: law}, writers: []}\n"
    with writing("a") as writer:
        refused = await candidates(writer, policy=policy, folder=tmp_path, metadata={"domain": "law"})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "writer")
        assert writer.asked == []
        assert (await candidates(writer, policy=policy, folder=tmp_path)).status_code == 200


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"k": 5}, "'k' is 5; allowed: 1 to n (4)"),
        ({"n": 17}, "n"),
        ({"logprobs": True}, "allowed: none of them"),
        ({"echo": True}, "allowed: none of them"),
        ({"stream": True}, "allowed: none of them"),
        ({"structured_outputs": {"regex": "a"}}, "a regex is given with a writer; allowed: a choice"),
        ({"writer": "large"}, "allowed here, by the setting writers and the policy's rule: small"),
        ({"at_least": 2}, "at_least"),
    ],
)
async def test_bad_bodies_are_refused_by_name(fields: Mapping[str, object], said: str) -> None:
    with writing("a") as writer:
        reply = await candidates(writer, **{**fields})  # type: ignore[arg-type]
        assert reply.status_code == 400
        assert said in reply.json()["error"]["message"]
