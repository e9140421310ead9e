"""Traffic of a running server becomes a trace: asked for, bounded, without text."""

import asyncio
import gzip
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import fields, replace
from itertools import chain
from pathlib import Path
from typing import Any

import httpx2
import pytest
from rich import progress
from typer.testing import CliRunner

from prolepsis.core.config import EngineConfig, ServerConfig
from prolepsis.core.ended import Keep, PromptEnded, RequestAbout, RequestEnded
from prolepsis.core.engine_client import EngineClient
from prolepsis.core.events import Tokens
from prolepsis.core.recorded_draft import RecordedDraft
from prolepsis.core.requests import GenerateRequest, SamplingParams
from prolepsis.core.stats import RequestStats
from prolepsis.core.telemetry.metrics import Metrics
from prolepsis.core.terminal.output import INTERRUPTED
from prolepsis.engine.build import build_engine
from prolepsis.engine.drafting.cost import flat_cost
from prolepsis.engine.models.load import load_model
from prolepsis.engine.text.tokenizer import Tokenizer
from prolepsis.engine.thread import ThreadEngineClient
from prolepsis.lab.rehearsal import traffic_recording
from prolepsis.lab.rehearsal.rehearsal import RehearsedServer, rehearse
from prolepsis.lab.rehearsal.trace import Trace, TraceLine, read_trace
from prolepsis.lab.rehearsal.traffic_recording import RecordingBody, TrafficRecording
from prolepsis.lab.virtual_engine.machine import Machine, ProposerCost
from prolepsis.server.admission.group import Progress
from prolepsis.server.answering.account import PromptAccount
from prolepsis.server.cli.main import app
from tests.server.application import build
from tests.server.conftest import served
from tests.server.fakes import ByteTokenizer, FakeEngine

ABOUT = RequestAbout(
    answer_id="a", tenant="acme", key_id="k", tier="premium", route="/v1/completions", model="tiny", arrived=101.0
)
DRAFT = RecordedDraft(0, 1, 4, (0,), (-1,), (0.5,), (0,), (0,))


def prompt(name: str, *, n: int = 1, tokens: tuple[int, ...] = (7, 8, 9)) -> PromptEnded:
    """Return a prompt that waited from 101 to 103, had its first token at 104 and ended at 106."""
    return PromptEnded(
        request=GenerateRequest(name, tuple(range(40)), SamplingParams(temperature=0.5), n=n),
        end="finished",
        error=None,
        stats=RequestStats(num_steps=2, first_token_s=1.0, total_s=3.0, drafts={"suffix": [DRAFT]}),
        num_shown_tokens=None,
        answer="complete",
        tokens=(Tokens(name, 0, tokens, position=0),) if tokens else (),
        finish_reasons=("stop",),
        delivery={},
        waited_s=2.0,
        began_at=103.0,
    )


def recording(*, names_tenants: bool = False, **wanted: Any) -> TrafficRecording:
    return TrafficRecording(RecordingBody(**wanted), "print", 100.0, names_tenants=names_tenants)


def trace_of(file: bytes | bytearray, folder: Path) -> Trace:
    (folder / "trace.jsonl.gz").write_bytes(file)
    return read_trace(folder / "trace.jsonl.gz")


def test_a_request_becomes_a_line(tmp_path: Path) -> None:
    recorded = recording()
    assert recorded.begin("r", 101.0) == Keep.SHAPES
    recorded.take(replace(ABOUT, structured="regex", tools=True, asks="off"), prompt("r"))
    trace = trace_of(recorded.file, tmp_path)
    [line] = trace.lines
    assert trace.machine == "print"
    assert (line.at, line.prompt, line.output, line.blocks, line.temperature) == (0.0, 40, 3, (0,), 0.5)
    assert (line.tenant, line.tier, line.route) == ("tenant-1", "premium", "/v1/completions")
    assert (line.structured, line.tools, line.mode, line.drafts) == ("regex", True, "off", {"suffix": (DRAFT,)})
    assert line.measured is not None
    assert (line.measured.first_token_s, line.measured.total_s, line.measured.num_steps) == (3.0, 5.0, 2)


def test_tenants_have_numbers_where_the_operator_does_not_let_them_be_named(tmp_path: Path) -> None:
    for names_tenants, expected in ((False, ["tenant-1", "tenant-2", "tenant-1", ""]), (True, ["a", "b", "a", ""])):
        recorded = recording(names_tenants=names_tenants)
        for i, tenant in enumerate(("a", "b", "a", "")):
            recorded.begin(str(i), 101.0)
            recorded.take(replace(ABOUT, tenant=tenant), prompt(str(i)))
        assert [line.tenant for line in trace_of(recorded.file, tmp_path).lines] == expected


def test_requests_belong_to_the_time_in_which_they_arrive() -> None:
    recorded = recording(seconds=10.0)
    assert [recorded.begin(str(at), at) for at in (99.0, 100.0, 109.9, 110.0)] == [
        Keep.FIGURES,
        Keep.SHAPES,
        Keep.SHAPES,
        Keep.FIGURES,
    ]
    recorded.take(ABOUT, prompt("99.0"))
    recorded.take(ABOUT, prompt("109.9"))
    shown = recorded.shown(112.0)
    assert (shown.remaining_s, shown.num_requests, shown.num_running) == (0.0, 1, 1)
    assert recorded.shown(104.0).remaining_s == 6.0


def test_a_recording_ends_with_its_number_of_requests() -> None:
    recorded = recording(requests=2)
    assert [recorded.begin(name, 101.0) for name in "abc"] == [Keep.SHAPES, Keep.SHAPES, Keep.FIGURES]
    assert recorded.shown(101.0).remaining_s == 0.0


def test_a_recording_ends_where_its_memory_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic_recording, "MOST_BYTES", 100)
    recorded = recording()
    recorded.begin("a", 101.0)
    recorded.take(ABOUT, prompt("a"))
    assert recorded.begin("b", 102.0) == Keep.FIGURES
    assert (recorded.shown(102.0).remaining_s, recorded.shown(102.0).num_requests) == (0.0, 1)


def test_only_a_share_has_drafts_and_all_have_a_line() -> None:
    recorded = recording(share=0.25)
    kept = [recorded.begin(str(i), 101.0) for i in range(400)]
    assert kept.count(Keep.SHAPES) == pytest.approx(100, abs=10)
    assert set(kept) == {Keep.SHAPES, Keep.TOKENS}


def test_what_a_rehearsal_cannot_play_is_counted_and_left_out() -> None:
    recorded = recording()
    for name in "abc":
        recorded.begin(name, 101.0)
    recorded.take(ABOUT, prompt("a", n=2))
    recorded.take(ABOUT, prompt("b", tokens=()))
    recorded.take(ABOUT, prompt("c"))
    shown = recorded.shown(101.0)
    assert (shown.num_requests, shown.num_left_out, shown.num_running) == (1, 2, 0)


def test_an_answer_whose_client_left_has_no_times(tmp_path: Path) -> None:
    recorded = recording()
    recorded.begin("a", 101.0)
    recorded.take(ABOUT, replace(prompt("a"), answer="unreported"))
    [line] = trace_of(recorded.file, tmp_path).lines
    assert (line.output, line.measured) == (3, None)


def test_what_features_keep_of_a_request_has_no_drafts() -> None:
    ended = RequestEnded(about=ABOUT, end="finished", error=None, prompts=(prompt("a"),))
    [kept] = ended.without_tokens.prompts
    assert (kept.tokens, kept.stats.drafts, kept.stats.num_steps) == ((), {}, 2)


def test_an_audited_request_that_is_recorded_keeps_both_kinds_of_drafts() -> None:
    asked_for = prompt("a").request
    account = PromptAccount(
        asked_for, Progress(asked_for), lambda: None, lambda *_: "unjudged", whole=False, clock=time.monotonic
    )
    asked = account.keep(Keep.DRAFTS | Keep.SHAPES)
    assert (asked.tells_drafts, asked.records_drafts, asked.keeps_rounds) == (True, True, True)
    assert not account.keep(Keep.SHAPES).tells_drafts
    assert not account.keep(Keep.DRAFTS).records_drafts


@asynccontextmanager
async def connected(
    client: EngineClient, tokenizer: Tokenizer, config: ServerConfig | None = None
) -> AsyncIterator[httpx2.AsyncClient]:
    application = build(config or ServerConfig(replay_sample=0.0), client, tokenizer, Metrics())
    transport = httpx2.ASGITransport(application)
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost", timeout=60.0) as http:
        yield http


async def completion(http: httpx2.AsyncClient, **body: object) -> None:
    reply = await http.post("/v1/completions", json={"model": "tiny", "prompt": "Hi", "max_tokens": 9, **body})
    assert reply.status_code == 200, reply.text


async def test_an_admin_starts_downloads_and_stops_a_recording(tmp_path: Path) -> None:
    async with connected(FakeEngine(), ByteTokenizer()) as http:
        assert (await http.get("/admin/recording")).json()["remaining_s"] == 0.0
        assert (await http.get("/admin/recording/file")).json()["error"]["code"] == "no_recording"
        await completion(http)
        assert (await http.post("/admin/recording", json={"seconds": 60})).json()["remaining_s"] > 50.0
        again = await http.post("/admin/recording", json={})
        assert (again.status_code, again.json()["error"]["code"]) == (409, "recording_under_way")
        await completion(http)
        await completion(http, prompt=["one", "two"])
        file = await http.get("/admin/recording/file")
        assert file.headers["content-type"] == "application/gzip"
        assert len(trace_of(file.content, tmp_path).lines) == 3
        last = (await http.delete("/admin/recording")).json()
        assert (last["num_requests"], last["num_running"]) == (3, 0)
        assert (await http.get("/admin/recording/file")).status_code == 404
        assert (await http.post("/admin/recording", json={"requests": 0})).status_code == 400


async def test_stored_answers_are_no_load_and_no_line(tmp_path: Path) -> None:
    config = ServerConfig(replay_sample=0.0, response_cache_bytes=2**20)
    async with connected(FakeEngine(), ByteTokenizer(), config) as http:
        await http.post("/admin/recording", json={})
        for _ in range(2):
            await completion(http, temperature=0)
        assert (await http.get("/admin/recording")).json()["num_requests"] == 1


async def test_without_a_recording_engines_record_no_drafts() -> None:
    engine = FakeEngine()
    async with connected(engine, ByteTokenizer()) as http:
        await completion(http)
        await http.post("/admin/recording", json={})
        await completion(http)
    assert [request.records_drafts for request in engine.requests] == [False, True]
    assert not any(request.tells_drafts for request in engine.requests)


TEXT = "the cat sat on the mat and the cat sat on the mat and then the cat sat on the mat and the cat "
BODY: dict[str, Any] = {"model": "tiny", "prompt": TEXT, "max_tokens": 40, "temperature": 0.0, "ignore_eos": True}


def test_the_traffic_of_a_model_is_recorded_and_rehearsed(
    tiny_family: Callable[[str, str], Path], tmp_path: Path
) -> None:
    config = EngineConfig(model=str(tiny_family("sentencepiece", "hermes")), max_model_len=512)
    target = load_model(config)
    client = ThreadEngineClient(build_engine(config, target=target))

    async def recorded() -> bytes:
        try:
            async with connected(client, target.tokenizer) as http:
                [model] = (await http.get("/v1/models")).json()["data"]
                await http.post("/admin/recording", json={"seconds": 600})
                for mode in ("off", "always", "always"):
                    await completion(http, **{**BODY, "model": model["id"], "speculation": {"mode": mode}})
                return (await http.get("/admin/recording/file")).content
        finally:
            await client.close()

    file = asyncio.run(recorded())
    trace, prompt_ids = trace_of(file, tmp_path), target.tokenizer.encode(TEXT)
    plain, first, second = trace.lines
    assert trace.machine == client.info.fingerprint
    assert [(line.prompt, line.output) for line in trace.lines] == [(len(prompt_ids), 40)] * 3
    assert plain.blocks == first.blocks == second.blocks == tuple(range(len(plain.blocks))), "equal texts, by number"
    assert not plain.drafts
    assert any(draft.path for draft in second.drafts["suffix"]), "the answer of before is found again"
    has_no_text(gzip.decompress(file).decode(), prompt_ids, second)
    free = {name: ProposerCost(free=True) for name in second.drafts}
    machine = Machine(passes=flat_cost(1.0), expected=flat_cost(1.0), proposers=free)
    played = rehearse(trace, RehearsedServer(machine=machine, mode="always")).outcomes
    assert [one.stats.num_output_tokens for one in played] == [40] * 3
    assert played[2].stats.num_steps < played[0].stats.num_steps == 40


def has_no_text(text: str, prompt_ids: list[int], line: TraceLine) -> None:
    """Check that a file has no word of the prompt, no run of its token ids, and no field but those that are known."""
    assert "cat" not in text
    assert json.dumps(prompt_ids[:4])[1:-1].replace(" ", "") not in text
    _, *lines = [json.loads(one) for one in text.splitlines()]
    known = {one.name for one in fields(TraceLine)}
    assert all(isinstance(one, Mapping) and one.keys() == known for one in lines)
    of_place: dict[int, list[int]] = {}
    for draft in chain.from_iterable(line.drafts.values()):
        of_place.setdefault(draft.position, []).extend(draft.classes)
    places = [numbers for numbers in of_place.values() if numbers]
    assert all(max(numbers) < len(numbers) for numbers in places), "tokens are numbered within a place"


def record_command(url: str, file: Path, *more: str) -> Any:
    return CliRunner().invoke(app, ["rehearse", "record", "--url", url, "--output", str(file), *more])


def ask_once_it_records(url: str) -> None:
    while not httpx2.get(f"{url}/admin/recording").json()["remaining_s"]:
        pass
    httpx2.post(f"{url}/v1/completions", json={"model": "tiny", "prompt": "Hi", "max_tokens": 9})


def test_the_command_records_until_the_requests_are_there(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl.gz"
    with served(FakeEngine()) as server:
        asking = threading.Thread(target=ask_once_it_records, args=(server.url,))
        asking.start()
        result = record_command(server.url, file, "--seconds", "60", "--requests", "1")
        asking.join()
        assert result.exit_code == 0, result.stderr
        assert len(read_trace(file).lines) == 1
        assert file.stat().st_mode & 0o077 == 0, "for its owner only"
        assert httpx2.get(f"{server.url}/admin/recording/file").status_code == 404, "the server has forgotten it"


def test_an_interrupted_command_keeps_what_there_is_and_stops_the_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(FakeEngine()) as server:

        def interrupted(bar: object) -> None:
            ask_once_it_records(server.url)
            raise KeyboardInterrupt

        monkeypatch.setattr(progress.Progress, "start", interrupted)
        result = record_command(server.url, tmp_path / "a.jsonl.gz")
        assert result.exit_code == INTERRUPTED
        assert len(read_trace(tmp_path / "a.jsonl.gz").lines) == 1
        assert httpx2.get(f"{server.url}/admin/recording").json()["remaining_s"] == 0.0


def test_a_name_that_no_trace_can_have_is_refused_before_anything_is_recorded(tmp_path: Path) -> None:
    for file in (tmp_path / "a.jsonl", tmp_path / "none" / "a.jsonl.gz"):
        assert "allowed: a name that ends with .gz" in record_command("http://127.0.0.1:1", file).stderr
