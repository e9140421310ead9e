"""`prolepsis audit replay` here and by a server; `audit show|export|verify --url`."""

import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import pytest
import structlog
from typer.testing import CliRunner, Result

from prolepsis.audit import chain
from prolepsis.audit.entry import AuditEntry
from prolepsis.cli.main import app
from prolepsis.core.audit_event import AuditEvent
from prolepsis.core.config import ServerConfig
from prolepsis.engine.thread import ThreadEngineClient
from prolepsis.store.store import Store, opened_store
from prolepsis.telemetry.logs import configure_logs
from prolepsis.telemetry.metrics import Metrics
from tests.api.conftest import served
from tests.api.fakes import FakeEngine
from tests.audit.test_requests import ASKED, ask, kept
from tests.correctness.test_runtime import BODY, table


@dataclass(frozen=True)
class Running:
    client: ThreadEngineClient


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """The store that commands use here."""
    setting = f"sqlite:///{tmp_path / 'store.sqlite'}"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PROLEPSIS_STORE", setting)
    monkeypatch.setenv("COLUMNS", "200")
    configure_logs("error")  # the server runs in this process: its lines would be among the command's
    with opened_store(ServerConfig(store=setting), Metrics().registry) as opened:
        assert opened is not None
        yield opened
    structlog.reset_defaults()


def run(*words: str, start: object = None) -> Result:
    """Run a command; one that starts an engine starts it by `start`."""
    return CliRunner().invoke(app, ["audit", *words], obj=start)


def small(*, fingerprint: str = "fp") -> Callable[[object], AbstractAsyncContextManager[Running]]:
    """Return what starts the small engine."""

    @asynccontextmanager
    async def running(settings: object) -> AsyncIterator[Running]:
        client = table()
        client.engine.info = replace(client.engine.info, fingerprint=fingerprint)
        yield Running(client)
        await client.close()

    return running


async def recorded(store: Store, *, flawed: bool = False) -> AuditEntry:
    client = table(flawed=flawed)
    reply = await ask(store, client, BODY, audit_content="tokens")
    assert reply.status_code == 200
    await client.close()
    return kept(store)[-1]


@pytest.fixture
async def right(store: Store) -> AuditEntry:
    return await recorded(store)


@pytest.fixture
async def wrong(store: Store) -> AuditEntry:
    return await recorded(store, flawed=True)


def test_a_record_is_decoded_again_here(right: AuditEntry) -> None:
    assert right.details is not None
    for name in (str(right.seq), right.details.subject):
        done = run("replay", name, "--json", start=small())
        assert done.exit_code == 0, done.output
        found = json.loads(done.stdout)
        assert (found["outcome"], found["num_tokens"], found["request_id"]) == ("match", 40, right.details.subject)


def test_a_difference_has_status_1(wrong: AuditEntry) -> None:
    done = run("replay", str(wrong.seq), start=small())
    assert done.exit_code == 1, done.output
    assert "structural" in done.stdout


def test_another_model_is_refused_unless_asked_for(right: AuditEntry) -> None:
    another = small(fingerprint="another")
    refused = run("replay", str(right.seq), start=another)
    assert refused.exit_code == 2
    assert "entry 1 is of table (fp), loaded is table (another)" in refused.stderr
    assert run("replay", str(right.seq), "--any-model", start=another).exit_code == 0


def test_what_cannot_be_replayed_is_said(store: Store) -> None:
    with store.database.write() as connection:
        chain.append(connection, [AuditEvent(actor="ann", action="plan.applied")])
    other = run("replay", "1", start=small())
    assert (other.exit_code, "it is of plan.applied" in other.stderr) == (2, True)
    missing = run("replay", "nobody", start=small())
    assert (missing.exit_code, "there is no audit entry 'nobody'" in missing.stderr) == (2, True)


@pytest.fixture
def url(store: Store) -> Iterator[str]:
    """A server on the store, with three requests on record."""
    config = ServerConfig(audit_sample=1.0, audit_content="tokens")
    with served(FakeEngine(text="ok"), config, store=store) as running:
        with httpx.Client(base_url=running.url) as http:
            for _ in range(3):
                http.post("/v1/completions", json=ASKED).raise_for_status()
        assert len(kept(store)) == 3
        yield running.url


def test_a_server_shows_exports_and_verifies_its_log(url: str, tmp_path: Path) -> None:
    assert [one["seq"] for one in json.loads(run("show", "--url", url, "--last", "2", "--json").stdout)] == [2, 3]
    many = run("show", "--url", url, "--last", "501")
    assert (many.exit_code, "last" in many.stderr) == (2, True)
    assert run("export", "-o", "here.jsonl").exit_code == 0
    assert run("export", "-o", "there.jsonl", "--url", url).exit_code == 0
    assert (tmp_path / "there.jsonl").read_text() == (tmp_path / "here.jsonl").read_text()
    heads = [json.loads(run("verify", "--json", *words).stdout)["head"] for words in ((), ("--url", url))]
    assert heads[0] == heads[1]
    assert heads[0].startswith("3:")


def test_a_server_replays(url: str, store: Store) -> None:
    done = run("replay", "2", "--url", url, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["outcome"] == "match"
    assert kept(store)[-1].action == "request.replayed"
    missing = run("replay", "77", "--url", url)
    assert (missing.exit_code, "404: There is no audit entry '77'" in missing.stderr) == (2, True)
