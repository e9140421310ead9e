"""`prolepsis audit replay` here, by a server and of a bundle; `audit bundle`; `audit show|export|verify --url`."""

import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
from pyrage.x25519 import Identity
from typer.testing import CliRunner, Result

from prolepsis.control.audit import chain
from prolepsis.control.audit.entry import AuditEntry
from prolepsis.control.store.store import Store
from prolepsis.core.audit_event import AuditEvent
from prolepsis.core.config import ServerConfig
from prolepsis.core.telemetry.logs import configure_logs
from prolepsis.core.terminal.output import UNPROVEN
from prolepsis.engine.thread import ThreadEngineClient
from prolepsis.server.cli.main import app
from tests.control.audit.test_requests import ASKED, after_of, ask, kept
from tests.control.correctness.test_runtime import BODY, table
from tests.server.conftest import served
from tests.server.fakes import FakeEngine


@pytest.fixture
def store(store: Store, sqlite: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """The store that commands use here."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PROLEPSIS_STORE", sqlite)
    monkeypatch.setenv("COLUMNS", "200")
    configure_logs("error")  # the server runs in this process: its lines would be among the command's
    return store


def run(*words: str, start: object = None) -> Result:
    """Run a command; one that starts an engine starts it by `start`."""
    return CliRunner().invoke(app, ["audit", *words], obj=start)


def small(
    *, fingerprint: str = "fp", forward: str = "table"
) -> Callable[[object], AbstractAsyncContextManager[ThreadEngineClient]]:
    @asynccontextmanager
    async def running(settings: object) -> AsyncIterator[ThreadEngineClient]:
        client = table()
        client.engine.info = replace(client.engine.info, fingerprint=fingerprint, forward=forward)
        yield client
        await client.close()

    return running


async def recorded(store: Store, *, flawed: bool = False, content: str = "tokens") -> AuditEntry:
    client = table(flawed=flawed)
    reply = await ask(store, client, BODY, audit_content=content)
    assert reply.status_code == 200
    await client.close()
    return kept(store)[-1]


@pytest.fixture
async def right(store: Store) -> AuditEntry:
    return await recorded(store)


@pytest.fixture
async def wrong(store: Store) -> AuditEntry:
    return await recorded(store, flawed=True)


@pytest.fixture
async def digested(store: Store) -> AuditEntry:
    return await recorded(store, content="digests")


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


def test_the_reason_why_an_entry_cannot_be_replayed_is_shown(store: Store) -> None:
    with store.database.write() as connection:
        chain.append(connection, [AuditEvent(actor="ann", action="plan.applied")])
    other = run("replay", "1", start=small())
    assert (other.exit_code, "it is of plan.applied" in other.stderr) == (2, True)
    missing = run("replay", "nobody", start=small())
    assert (missing.exit_code, "there is no audit entry 'nobody'" in missing.stderr) == (2, True)


def elsewhere(*words: str, start: object) -> tuple[int, dict[str, Any]]:
    """Replay a bundle on a machine without the store; return status and document."""
    done = CliRunner().invoke(app, ["audit", "replay", "--json", *words], obj=start, env={"PROLEPSIS_STORE": "none"})
    return done.exit_code, json.loads(done.stdout)


def test_another_machine_gets_the_same_tokens(right: AuditEntry) -> None:
    for name in (str(right.seq), str(after_of(right)["answer_id"])):
        done = run("bundle", name, "-o", "request.json")
        assert (done.exit_code, "wrote request.json, redacted" in done.stderr) == (0, True), done.output
    status, found = elsewhere("--bundle", "request.json", start=small())
    [prompt] = found["prompts"]
    assert (status, found["outcome"], prompt["outcome"], prompt["num_tokens"]) == (0, "equal", "equal", 40)


def test_a_difference_is_distinguished_from_a_machine_that_cannot_compare(wrong: AuditEntry) -> None:
    assert run("bundle", str(wrong.seq), "-o", "request.json").exit_code == 0
    status, found = elsewhere("--bundle", "request.json", start=small())
    [prompt] = found["prompts"]
    assert (status, found["outcome"], prompt["reason"]) == (1, "different", "first differences: structural")
    other = small(forward="native (avx2)")
    status, found = elsewhere("--bundle", "request.json", start=other)
    assert (status, found["outcome"]) == (UNPROVEN, "cannot")
    assert found["prompts"][0]["reason"] == (
        "this machine is of another exact group: forward table recorded, native (avx2) here"
    )
    status, found = elsewhere("--bundle", "request.json", "--any-model", start=other)
    assert (status, "another exact group" in found["prompts"][0]["reason"]) == (1, True)


def test_without_tokens_a_bundle_says_that_it_cannot(digested: AuditEntry) -> None:
    done = run("bundle", str(digested.seq), "-o", "request.json")
    assert (done.exit_code, "nothing can be replayed from this bundle" in done.stderr) == (UNPROVEN, True)
    assert "--audit-content tokens" in done.stderr
    status, found = elsewhere("--bundle", "request.json", start=small())
    assert (status, found["outcome"]) == (UNPROVEN, "cannot")
    assert "holds no tokens" in found["prompts"][0]["reason"]


def test_a_request_without_tokens_is_not_proven_and_says_what_keeps_them(digested: AuditEntry) -> None:
    for name in (str(digested.seq), str(after_of(digested)["answer_id"])):
        done = run("replay", name, start=small())
        assert (done.exit_code, "--audit-content tokens" in done.stderr) == (UNPROVEN, True), done.output


def test_with_the_default_settings_nothing_can_be_replayed(store: Store) -> None:
    """The audit log keeps nothing of requests unless it is told to."""
    with served(FakeEngine(text="ok"), ServerConfig(), store=store) as running:
        answer_id = httpx2.post(f"{running.url}/v1/completions", json=ASKED).raise_for_status().json()["id"]
        assert store.writer.flush(20.0)
    for words in (("bundle", answer_id, "-o", "request.json"), ("replay", answer_id)):
        done = run(*words, start=small())
        assert (done.exit_code, "holds no tokens of the request" in done.stderr) == (UNPROVEN, True), done.output


@pytest.fixture
def key_pair(store: Store, tmp_path: Path) -> None:
    """The files key.txt and key.pub."""
    key = Identity.generate()
    (tmp_path / "key.txt").write_text(f"{key}\n")
    (tmp_path / "key.pub").write_text(f"{key.to_public()}\n")


@pytest.mark.usefixtures("key_pair")
def test_a_sealed_bundle_is_whole_and_opens_with_its_key(right: AuditEntry, tmp_path: Path) -> None:
    assert run("bundle", str(right.seq), "--seal-for", "key.pub", "-o", "sealed.json").exit_code == 0
    assert "recording" not in (tmp_path / "sealed.json").read_text()
    closed = run("replay", "--bundle", "sealed.json", start=small())
    assert (closed.exit_code, "it opens with its private key" in closed.stderr) == (2, True)
    status, found = elsewhere("--bundle", "sealed.json", "--open-with", "key.txt", start=small())
    assert (status, found["outcome"], found["form"]) == (0, "equal", "whole")


@pytest.mark.usefixtures("key_pair")
def test_handing_out_is_on_record(right: AuditEntry, store: Store) -> None:
    run("bundle", str(right.seq))
    run("bundle", str(right.seq), "--seal-for", "key.pub", "-o", "sealed.json")
    redacted, sealed = kept(store)[-2:]
    assert redacted.action == sealed.action == "request.exported"
    assert after_of(redacted) == {"form": "redacted", "entries": [right.seq], "sealed_for": ""}
    assert (after_of(sealed)["form"], after_of(sealed)["sealed_for"].startswith("key ")) == ("whole", True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("bundle", "nobody"), "no request is known as 'nobody'"),
        (("bundle", "1", "--seal-for", "missing.pub"), "holds no public key"),
        (("bundle", "1", "--seal-for", "a", "--passphrase-file", "empty"), "allowed: one of them"),
        (("bundle", "1", "--passphrase-file", "empty"), "has no first line"),
        (("replay", "--bundle", "empty"), "empty is not a bundle"),
        (("replay", "1", "--bundle", "empty"), "allowed: an ID"),
        (("replay",), "allowed: an ID"),
    ],
)
def test_bad_input_says_what_is_allowed(store: Store, tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    (tmp_path / "empty").write_text("")
    done = run(*words, start=small())
    assert (done.exit_code, message in done.stderr) == (2, True), done.output


@pytest.fixture
def url(store: Store) -> Iterator[str]:
    """A server on the store, with three requests on record."""
    config = ServerConfig(audit_sample=1.0, audit_content="tokens")
    with served(FakeEngine(text="ok"), config, store=store) as running:
        with httpx2.Client(base_url=running.url) as http:
            for _ in range(3):
                http.post("/v1/completions", json=ASKED).raise_for_status()
        assert len(kept(store)) == 3
        yield running.url


def test_a_server_shows_exports_and_verifies_its_log(url: str, tmp_path: Path) -> None:
    shown = json.loads(run("show", "--url", url, "--last", "2", "--json").stdout)
    assert [one["seq"] for one in shown["entries"]] == [2, 3]
    many = run("show", "--url", url, "--last", "501")
    assert (many.exit_code, "last" in many.stderr) == (2, True)
    assert run("export", "-o", "here.jsonl").exit_code == 0
    assert run("export", "-o", "there.jsonl", "--url", url).exit_code == 0
    assert (tmp_path / "there.jsonl").read_text() == (tmp_path / "here.jsonl").read_text()
    heads = [json.loads(run("verify", "--json", *words).stdout)["head"] for words in ((), ("--url", url))]
    assert heads[0] == heads[1]
    assert heads[0].startswith("3:")


def test_a_server_hands_out_a_bundle(url: str, store: Store, tmp_path: Path) -> None:
    done = run("bundle", "2", "--url", url, "-o", "request.json")
    assert done.exit_code == 0, done.output
    assert [entry["seq"] for entry in json.loads((tmp_path / "request.json").read_text())["entries"]] == [2]
    assert kept(store)[-1].action == "request.exported"
    missing = run("bundle", "77", "--url", url)
    assert (missing.exit_code, "404: No request is known as '77'" in missing.stderr) == (2, True)


def test_a_server_replays(url: str, store: Store) -> None:
    done = run("replay", "2", "--url", url, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["outcome"] == "match"
    assert kept(store)[-1].action == "request.replayed"
    missing = run("replay", "77", "--url", url)
    assert (missing.exit_code, "404: There is no audit entry '77'" in missing.stderr) == (2, True)
