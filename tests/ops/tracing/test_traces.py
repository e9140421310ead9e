"""Traces of a whole server around a real engine, as a receiver of OTLP gets them: the tree of spans of each request."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from typing import Any

import httpx2
import pytest

from prolepsis.core.config import ServerConfig
from prolepsis.core.trace_context import new_trace_id
from prolepsis.engine.drafting.draft import Draft
from prolepsis.engine.drafting.proposer import SequenceView
from prolepsis.engine.rows import Row, SampledTokens
from prolepsis.engine.runner import Computed
from tests.contract.surface import attributes
from tests.control.correctness.test_runtime import serving as mismatches
from tests.control.correctness.test_runtime import table
from tests.fake_proposer import Scripted
from tests.fakes import EngineSetup, KeyedVerifier, draft_chain
from tests.load.server import TableServer, serving
from tests.ops.tracing.receiver import ReceivedSpan, Receiver, receiving, tree
from tests.waiting import wait_for

CALLER = "00f067aa0ba902b7"
PROMPT = "thesecretprompt"
BODY = {"model": "table", "max_tokens": 40, "temperature": 0.0, "ignore_eos": True, "user": "ann@example.org"}


class Touchy(KeyedVerifier):
    """Fails a step, or waits in it, when a test says so."""

    def __init__(self) -> None:
        self.fails = False
        self.open = Event()
        self.open.set()
        self.closes_after: int | None = None
        """Passes after which `open` is cleared."""

    def verify(self, rows: Sequence[Row], computed: Computed) -> list[SampledTokens | None]:
        if self.closes_after is not None:
            self.closes_after -= 1
            if self.closes_after < 0:
                self.closes_after = None
                self.open.clear()
        self.open.wait()
        if self.fails:
            self.fails = False
            raise RuntimeError(f"no verification of {PROMPT}")
        return super().verify(rows, computed)


class Drafting(Scripted):
    """Drafts three tokens, the last one wrong; raises where a test says so."""

    def __init__(self) -> None:
        super().__init__(self._draft)
        self.raises = False

    def _draft(self, sequence: SequenceView, limit: int) -> Draft:
        if self.raises:
            raise RuntimeError("no draft")
        return draft_chain(sequence, min(limit, 3), wrong_from=2)


@dataclass
class Traced:
    """A server whose traces go to `receiver`; all have arrived once it is closed."""

    server: TableServer
    receiver: Receiver
    verifier: Touchy
    drafting: Drafting

    def ask(self, *, sampled: bool = True, path: str = "chat/completions", **changes: Any) -> str:
        """Send a request and return the id of its trace."""
        trace_id, asked = new_trace_id(), {"messages": [{"role": "user", "content": PROMPT}]}
        body = BODY | (asked if path == "chat/completions" else {}) | changes
        headers = {"traceparent": f"00-{trace_id}-{CALLER}-{sampled:02x}", "x-request-id": "from-ann@example.org"}
        httpx2.post(f"{self.server.url}/v1/{path}", json=body, headers=headers, timeout=60)
        return trace_id


@pytest.fixture
def traced() -> Iterator[Traced]:
    with receiving() as receiver:
        verifier, drafting = Touchy(), Drafting()
        setup = EngineSetup(max_model_len=512, num_pages=256, verifier=verifier, proposers=[drafting])
        config = ServerConfig(breaker="off", replay_sample=0.0, traces=receiver.url, trace_sample=0.0)
        server = TableServer(config, setup)
        server.engine.info = replace(server.engine.info, fingerprint="fp-of-table")
        yield Traced(server, receiver, verifier, drafting)


def check_nesting(spans: Sequence[ReceivedSpan]) -> None:
    found = {span.span_id: span for span in spans}
    for span in spans:
        parent = found.get(span.parent_id)
        assert span.began <= span.ended
        assert parent is None or parent.began <= span.began <= span.ended <= parent.ended, (span, parent)


def named(spans: Sequence[ReceivedSpan], name: str) -> list[ReceivedSpan]:
    return [span for span in spans if span.name == name]


def test_a_sampled_request_has_its_phases_and_rounds(traced: Traced) -> None:
    with serving(traced.server):
        trace_id = traced.ask()
    spans = traced.receiver.trace(trace_id)
    below = tree(spans)
    assert below[CALLER] == ["chat table"]
    assert below["chat table"] == ["queue", "prefill", "decode"]
    assert set(below["decode"]) == {"round"}
    check_nesting(spans)
    [own], [decode], rounds = named(spans, "chat table"), named(spans, "decode"), named(spans, "round")
    assert (own.kind, own.failed, decode.kind) == ("server", False, "internal")
    assert own.attributes["http.route"] == "/v1/chat/completions"
    assert own.attributes["gen_ai.usage.output_tokens"] == 40
    assert own.attributes["prolepsis.mode.reason"] == "speculating"
    assert len(rounds) == decode.attributes["prolepsis.speculation.rounds"]
    for name in ("prolepsis.speculation.drafted_tokens", "prolepsis.speculation.accepted_tokens"):
        assert sum(int(str(one.attributes[name])) for one in rounds) == decode.attributes[name]
    assert {one.attributes["prolepsis.speculation.proposer.name"] for one in rounds} == {"scripted"}
    assert "partly_accepted" in {one.attributes["prolepsis.speculation.outcome"] for one in rounds}


def test_the_receiver_learns_which_server_it_is(traced: Traced, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20abc")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "chat-eu")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    server = TableServer(traced.server.config, EngineSetup(max_model_len=512, num_pages=256))
    with serving(server):
        replace(traced, server=server).ask()
    resource = traced.receiver.resource
    assert (resource["service.name"], resource["deployment.environment.name"]) == ("chat-eu", "test")
    assert resource["prolepsis.exactness"] == "strict"
    assert traced.receiver.headers["authorization"] == "Bearer abc"
    assert set(traced.receiver.paths) == {"/v1/traces"}


def test_no_text_leaves_the_server(traced: Traced) -> None:
    with serving(traced.server):
        traced.ask(stop=["thestopword"], tools=[{"type": "function", "function": {"name": "thetoolname"}}])
        traced.verifier.fails = True
        traced.ask()
        traced.ask(path="thesecretpath")
    words = [PROMPT, "thestopword", "thetoolname", "ann@example.org", "thesecretpath", "content"]
    assert [word for word in words if word.encode() in traced.receiver.raw] == []
    assert len(traced.receiver.spans) > 6


def test_unsampled_traces_are_sent_if_something_went_wrong(traced: Traced) -> None:
    with serving(traced.server):
        fine = traced.ask(sampled=False)
        traced.verifier.fails = True
        failed = traced.ask(sampled=False)
        traced.drafting.raises = True
        fell_back = traced.ask(sampled=False)
        kept = {reason: traced.server.sample("traces_total", reason=reason) for reason in ("error", "fallback")}
    assert traced.receiver.trace(fine) == []
    [own] = named(traced.receiver.trace(failed), "chat table")
    assert (own.failed, own.attributes["error.type"], own.attributes["prolepsis.trace.kept"]) == (
        True,
        "engine_error",
        "error",
    )
    spans = traced.receiver.trace(fell_back)
    [own] = named(spans, "chat table")
    assert (own.failed, own.attributes["prolepsis.trace.kept"], own.attributes["prolepsis.fallback.reasons"]) == (
        False,
        "fallback",
        ["backoff"],
    )
    [decode] = named(spans, "decode")
    assert "backoff" in list(decode.attributes["prolepsis.plain.reasons"])  # type: ignore[arg-type]
    assert kept == {"error": 1.0, "fallback": 1.0}


def test_a_client_that_leaves_is_not_an_error(traced: Traced) -> None:
    with serving(traced.server) as server:
        trace_id = new_trace_id()
        headers = {"traceparent": f"00-{trace_id}-{CALLER}-01"}
        body = BODY | {"stream": True, "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 400}
        traced.verifier.closes_after = 20
        with httpx2.stream("POST", f"{server.url}/v1/chat/completions", json=body, headers=headers) as reply:
            lines = reply.iter_lines()
            while not re.search('"content": ?"[a-z]', next(lines)):
                pass
        wait_for(lambda: server.gate.num_inside == 0)
        traced.verifier.open.set()
    spans = traced.receiver.trace(trace_id)
    assert tree(spans)["chat table"] == ["queue", "prefill", "decode"]
    check_nesting(spans)
    [own] = named(spans, "chat table")
    assert (own.failed, own.attributes["prolepsis.end"], own.attributes["prolepsis.answer"]) == (
        False,
        "left",
        "unreported",
    )
    assert own.attributes["gen_ai.request.stream"] is True


def test_a_request_that_never_reached_the_engine_is_one_span(traced: Traced) -> None:
    with serving(traced.server) as server:
        refused = traced.ask(temperature=7)
        elsewhere, unseen = new_trace_id(), new_trace_id()
        for path, trace_id in (("/v1/models", elsewhere), ("/health/ready", unseen)):
            httpx2.get(server.url + path, headers={"traceparent": f"00-{trace_id}-{CALLER}-01"})
    [span] = traced.receiver.trace(refused)
    assert (span.name, span.attributes["http.response.status_code"]) == ("POST /v1/chat/completions", 400)
    [span] = traced.receiver.trace(elsewhere)
    assert (span.name, span.failed, span.parent_id) == ("GET /v1/models", False, CALLER)
    assert traced.receiver.trace(unseen) == []


def test_several_prompts_are_traced_apart(traced: Traced) -> None:
    with serving(traced.server):
        trace_id = traced.ask(path="completions", prompt=[[1, 2, 3], [4, 5, 6]], n=2)
    spans = traced.receiver.trace(trace_id)
    check_nesting(spans)
    below = tree(spans)
    assert below["text_completion table"] == ["prompt", "prompt"]
    assert sorted(set(below["prompt"])) == ["decode", "prefill", "queue"]
    assert {one.attributes["prolepsis.speculation.sample"] for one in named(spans, "round")} == {0, 1}


def test_a_trace_of_its_own_is_begun_and_named_in_the_reply(traced: Traced) -> None:
    config = traced.server.config.model_copy(update={"trace_sample": 1.0})
    server = TableServer(config, EngineSetup(max_model_len=512, num_pages=256))
    with serving(server):
        reply = httpx2.post(f"{server.url}/v1/completions", json=BODY | {"prompt": [1, 2, 3]})
    [_, trace_id, span_id, flags] = reply.headers["traceparent"].split("-")
    [own] = [span for span in traced.receiver.trace(trace_id) if span.kind == "server"]
    assert (own.span_id, own.parent_id, flags) == (span_id, "", "01")
    assert own.attributes["gen_ai.response.id"] == json.loads(reply.text)["id"]


def test_every_attribute_is_one_of_the_names(traced: Traced) -> None:
    with serving(traced.server):
        traced.ask()
        traced.ask(path="completions", prompt=[[1, 2, 3], [4, 5, 6]])
        traced.ask(temperature=7)
    assert {name for span in traced.receiver.spans for name in span.attributes} <= attributes()


async def test_a_replay_with_wrong_tokens_sends_the_trace_of_its_request(traced: Traced, tmp_path: Path) -> None:
    url = traced.receiver.url
    async with mismatches(table(flawed=True), tmp_path, traces=url, trace_sample=0.0) as served:
        await served.ask()
        said = await served.until(1)
    [difference] = said["differences"]
    spans = traced.receiver.spans
    [own], [again] = named(spans, "text_completion table"), named(spans, "replay")
    assert tree(spans)["text_completion table"] == ["queue", "prefill", "decode", "replay"]
    assert named(spans, "round")
    assert (own.failed, own.attributes["prolepsis.trace.kept"], again.failed) == (False, "mismatch", True)
    assert again.attributes["prolepsis.replay.outcome"] == "structural"
    assert again.attributes["prolepsis.replay.position"] == difference["position"]
    assert again.attributes["prolepsis.request.id"] == difference["request_id"]
    assert again.began >= own.ended


def test_latencies_have_sampled_traces_as_exemplars(traced: Traced) -> None:
    with serving(traced.server) as server:
        trace_id, _ = traced.ask(), traced.ask(sampled=False)
        shown = {
            accept: httpx2.get(f"{server.url}/metrics", headers={"accept": accept})
            for accept in ("application/openmetrics-text; version=1.0.0", "text/plain", "*/*")
        }
    openmetrics, plain, _ = (reply.text for reply in shown.values())
    found = set(re.findall(r'^prolepsis_(\w+)_bucket.* # {.*trace_id="(\w+)"', openmetrics, re.MULTILINE))
    assert found >= {("time_to_first_token_seconds", trace_id), ("request_decode_time_seconds", trace_id)}
    assert {one for _, one in found} == {trace_id}
    assert openmetrics.endswith("# EOF\n")
    assert trace_id not in plain
    types = [reply.headers["content-type"].partition(";")[0] for reply in shown.values()]
    assert types == ["application/openmetrics-text", "text/plain", "text/plain"]


def test_a_receiver_that_refuses_costs_traces_only(traced: Traced) -> None:
    traced.receiver.status = 400
    with serving(traced.server):
        traced.ask()
    assert traced.server.sample("trace_spans_lost_total") > 3.0
    assert traced.server.sample("trace_spans_sent_total") == 0.0
