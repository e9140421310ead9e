"""`prolepsis drill` against servers in this process: each drill gives the result that the documentation says."""

import json
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
import uvicorn
from typer.testing import CliRunner

from prolepsis.control.store.store import open_store
from prolepsis.core.config import DRAFT_HEAD, EngineConfig, ServerConfig
from prolepsis.core.telemetry.metrics import Metrics
from prolepsis.core.terminal.output import BAD_INPUT, INTERRUPTED, OK, UNPROVEN
from prolepsis.engine.drafting.call_watch import CallWatch
from prolepsis.engine.drafting.proposer import Proposer
from prolepsis.engine.sampling.sampler import Sampler
from prolepsis.engine.verification import Verification
from prolepsis.lab.drills import command as drill
from prolepsis.lab.drills.command import DrillResult, Site
from prolepsis.lab.drills.drills import BY_NAME, DRILLS
from prolepsis.server.cli.engine import start_configured
from prolepsis.server.cli.main import app
from prolepsis.server.run import StartedEngine, application, bind
from tests.control.store.databases import migrated_setting
from tests.engine.test_faults import right
from tests.fakes import EOS, VOCAB, EngineSetup
from tests.faults.test_engine_lost import RestartingServer
from tests.load.server import TableServer, serving
from tests.server.application import build
from tests.server.fakes import ByteTokenizer, FakeEngine
from tests.server_thread import running
from tests.waiting import wait_for


def config(folder: Path) -> ServerConfig:
    return ServerConfig(allow_drills=True, replay_sample=1.0, controls_file=folder / "controls.json")


def setup() -> EngineSetup:
    """Its drafts are right, so that breakers open for faults only."""
    head: Proposer = right(DRAFT_HEAD)
    head.free = False
    return EngineSetup(
        max_model_len=1024,
        num_pages=512,
        proposers=(right("suffix"), head),
        verifier=Verification(Sampler(VOCAB, (EOS,)), max_model_len=1024),
        watch=CallWatch(0.05),
    )


def judged(url: str, name: str) -> DrillResult:
    return Site(url, None, BY_NAME[name], drain=True, look_s=0.05).judge()


@pytest.mark.parametrize(
    ("name", "alert", "is_safe"),
    [
        ("proposer-hang", "ProposerFails", True),
        ("proposer-slow", "ProposerFails", True),
        ("proposer-raise", "ProposerFails", True),
        ("head-damage", "BreakerOpen", True),
        ("poisoned-prompts", None, False),
        ("burst", None, False),
        ("mismatch", "OutputsDiffer", False),
    ],
)
def test_a_fault_of_an_engine_is_noticed_and_costs_no_answer(
    tmp_path: Path, name: str, alert: str | None, is_safe: bool
) -> None:
    server = TableServer(config=config(tmp_path), setup=setup())
    server.engine.info = replace(server.engine.info, draft_head="letters@1")
    with serving(server):
        result = judged(server.url, name)
        server.check_ended_once()
        assert all(one.fault is None for one in server.engine.speculation.proposers.contained)
    assert (result.result, result.outputs_equal, result.lost) == ("passed", True, 0), result
    assert (result.alert, result.safe_mode_s is not None) == (alert, is_safe)
    assert result.asked > 8


def test_an_engine_that_is_killed_is_started_again(tmp_path: Path) -> None:
    server = RestartingServer(config=config(tmp_path), setup=setup())
    server.may_start.set()
    with serving(server):
        result = judged(server.url, "engine-kill")
    assert (result.result, result.alert, result.lost) == ("passed", "EngineRestarted", 0), result
    assert len(server.engines) == 2


@contextmanager
def kept(folder: Path) -> Iterator[str]:
    """Give the URL of a server that keeps a store, and shows it in its metrics."""
    metrics, own = Metrics(), config(folder)
    with closing(open_store(migrated_setting(folder), metrics.registry)) as store:
        listener = bind(ServerConfig(port=0))
        application = build(own, FakeEngine(), ByteTokenizer(), metrics, store=store)
        with running(uvicorn.Config(application, log_config=None, lifespan="on"), listener):
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        assert store.database.failing == {}
        assert store.writer.health().dropped == {}


@pytest.mark.parametrize("name", ["store-away", "disk-full"])
def test_a_store_that_fails_is_noticed_and_costs_no_answer(tmp_path: Path, name: str) -> None:
    with kept(tmp_path) as url:
        result = judged(url, name)
    assert (result.result, result.alert, result.lost) == ("passed", "StoreDown", 0), result


def test_a_fault_that_is_not_noticed_fails_the_drill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where breakers are off, the proposer is not left out."""
    monkeypatch.setattr(drill, "MOST_S", 0.2)
    server = TableServer(config=config(tmp_path).model_copy(update={"breaker": "off"}), setup=setup())
    with serving(server):
        result = judged(server.url, "proposer-raise")
    assert (result.result, result.safe_mode_s, result.outputs_equal) == ("failed", None, True), result


def run(*words: str) -> tuple[int, dict[str, Any]]:
    result = CliRunner().invoke(app, ["drill", *words, "--json"])
    return result.exit_code, json.loads(result.stdout or "{}")


@pytest.fixture
def interrupts() -> Iterator[None]:
    """A run in the background of a shell ignores the signal, and so do the tests in it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interrupts")
def test_an_interrupt_takes_the_fault_back_and_shows_the_results_of_what_ended(tmp_path: Path) -> None:
    server = TableServer(config=config(tmp_path), setup=setup())
    proposers = server.engine.speculation.proposers.contained

    def interrupt() -> None:
        wait_for(lambda: all(one.fault for one in proposers))  # not of the first drill, which is of free ones only
        signal.raise_signal(signal.SIGINT)

    with serving(server), ThreadPoolExecutor(1) as pool:
        interrupted = pool.submit(interrupt)
        status, reply = run("all", "--url", server.url, "--drain")
        interrupted.result()
        assert server.gate.drilled_by is None
        wait_for(lambda: not any(one.fault for one in proposers))
    results = [(one["drill"], one["result"]) for one in reply["results"]]
    assert results == [("proposer-hang", "passed"), ("proposer-slow", "broken off")]
    assert status == INTERRUPTED


def test_a_drill_ends_where_requests_of_others_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drill, "MOST_S", 0.2)
    server = TableServer(config=config(tmp_path))
    with serving(server):
        server.gate.num_inside = 1
        result = judged(server.url, "burst")
    assert result.result == "not here: 1 requests of others did not end within 0.2 s"


@pytest.fixture(scope="module")
def modelled(tmp_path_factory: pytest.TempPathFactory, tiny_family: Callable[[str, str], Path]) -> Iterator[str]:
    """Give the URL of a server of a small random model, with its policy in a store."""
    folder = tmp_path_factory.mktemp("modelled")
    engine = EngineConfig(model=str(tiny_family("sentencepiece", "hermes")), max_model_len=512)
    own = config(folder).model_copy(update={"store": f"sqlite:///{folder}/store.sqlite"})
    listener = bind(ServerConfig(port=0))

    def start(of: EngineConfig, metrics: Metrics) -> StartedEngine:
        running_engine = start_configured(of, metrics)
        return StartedEngine(running_engine.client, running_engine.tokenizer)

    with (
        application(engine, own, start) as made,
        running(uvicorn.Config(made, log_config=None, lifespan="on"), listener),
    ):
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


PINNED = "not here: speculation.mode is 'always', but the policy's rule 'default' pins it to off"


@pytest.mark.parametrize(
    ("default", "killed", "status", "result"),
    [
        ("{mode: off}", False, OK, "passed"),
        ("{mode: off, pinned: true}", False, UNPROVEN, PINNED),
        ("{mode: on}", True, UNPROVEN, "not here: the kill switch stops it"),
    ],
)
def test_a_drill_drafts_under_any_default_or_says_why_it_cannot(
    modelled: str, default: str, killed: bool, status: int, result: str
) -> None:
    """Faults are noticed also where the policy keeps requests plain that do not insist."""
    [newest, *_] = httpx2.get(f"{modelled}/admin/policy/versions").json()["versions"] or [{"version": 0}]
    policy = {"text": f"version: drilled\ndefault: {default}\n", "reason": "a drill", "expect": newest["version"]}
    assert httpx2.put(f"{modelled}/admin/policy", json=policy).status_code == 200
    assert httpx2.put(f"{modelled}/admin/kill", json={"on": killed}).status_code == 200
    given, reply = run("proposer-raise", "--drain", "--url", modelled)
    assert (given, reply["results"][0]["result"]) == (status, result), reply


def test_what_cannot_be_here_is_no_success(tmp_path: Path) -> None:
    with kept(tmp_path) as url:
        status, reply = run("network-partition", "--url", url, "--drain")
    assert status == UNPROVEN
    [result] = reply["results"]
    assert result["result"].startswith("not here: the server lacks a way to do it")


def test_a_refusal_ends_the_run(tmp_path: Path) -> None:
    with kept(tmp_path) as url:
        assert run("all", "--url", url) == (BAD_INPUT, {})
    assert run("none such") == (BAD_INPUT, {})


def test_the_list_names_every_drill() -> None:
    status, reply = run()
    assert status == OK
    assert [one["name"] for one in reply["drills"]] == [one.name for one in DRILLS]
    assert "proposer-hang" in CliRunner().invoke(app, ["drill"]).stdout
