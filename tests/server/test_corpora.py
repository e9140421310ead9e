"""Corpora through /v1/files and /admin/corpora: what the engine gets, limits, owners, restarts, removal."""

import sqlite3
from array import array
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from prolepsis.control.policy.learning_terms import LearningTerms
from prolepsis.control.store.lineage import forget
from prolepsis.control.store.store import Store
from prolepsis.control.web.context import Context
from prolepsis.control.web.intake import Intake, Uploads
from prolepsis.core.audit_event import discard
from prolepsis.core.config import ServerConfig
from prolepsis.core.learning import Example
from prolepsis.core.messages import owners
from prolepsis.core.requests import cache_salt_of
from prolepsis.core.telemetry.metrics import Metrics
from prolepsis.server.corpora import EXAMPLES_S, FORGETTING_S, MOST_BYTES, Corpora
from prolepsis.server.front.key_file import KeyFile, new_key
from prolepsis.server.front.keys import Keys
from tests.clock import Clock
from tests.control.store.learnt import example
from tests.control.store.learnt import put as keep
from tests.fake_client import INFO
from tests.server.batches.conftest import Serve, serving
from tests.server.conftest import Served
from tests.server.fakes import ByteTokenizer, FakeEngine
from tests.waiting import wait_for


@pytest.fixture
def serve(sqlite: str) -> Iterator[Serve]:
    with serving(sqlite) as start:
        yield start


def put(server: Served, text: str | bytes, key: str = "", name: str = "a.py", **form: str) -> httpx2.Response:
    content = text.encode() if isinstance(text, str) else text
    headers = {"authorization": f"Bearer {key}"} if key else {}
    form = {"purpose": "corpus", **form}
    return httpx2.post(f"{server.url}/v1/files", data=form, files={"file": (name, content)}, headers=headers)


def ids(*texts: str) -> tuple[bytes, ...]:
    """Return what the engine gets of texts, one token a byte."""
    return tuple(array("i", list(text.encode())).tobytes() for text in texts)


def listed(server: Served, key: str = "") -> list[dict[str, Any]]:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    found: list[dict[str, Any]] = httpx2.get(f"{server.url}/admin/corpora", headers=headers).json()
    return found


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Keys, dict[str, str]]:
    """Return the keys of two tenants and of an operator."""
    file, made = KeyFile(tmp_path / "keys.json"), {}
    for name, roles in (("acme", ("client",)), ("other", ("client",)), ("ops", ("client", "operator", "viewer"))):
        record, made[name] = new_key(name, roles=roles)
        file.add(record)
    return Keys(file), made


def test_the_engine_gets_a_tenants_corpora_and_loses_deleted_ones(serve: Serve) -> None:
    server = serve(engine := FakeEngine())
    first, second = put(server, "one").json(), put(server, "zwei ü").json()
    assert (first["purpose"], first["bytes"], second["bytes"]) == ("corpus", 3, 7)
    assert engine.corpora == {"tenant:": ids("one", "zwei ü")}
    assert [(one["owner"], one["tokens"], one["filename"]) for one in listed(server)] == [
        ("tenant:", 3, "a.py"),
        ("tenant:", 7, "a.py"),
    ]
    assert server.openai().files.delete(first["id"]).deleted
    assert engine.corpora == {"tenant:": ids("zwei ü")}
    removed = httpx2.delete(f"{server.url}/admin/corpora/{second['id']}")
    assert (removed.json()["id"], removed.json()["tokens"]) == (second["id"], 7)
    assert engine.corpora == {"tenant:": ()}
    assert httpx2.delete(f"{server.url}/admin/corpora/{second['id']}").status_code == 404
    assert listed(server) == []


def test_each_tenant_has_its_own(serve: Serve, keys: tuple[Keys, dict[str, str]]) -> None:
    known, key_of = keys
    server = serve(engine := FakeEngine(), known)
    for tenant in ("acme", "other"):
        assert put(server, f"of {tenant}", key_of[tenant]).status_code == 200
    assert engine.corpora == {"tenant:acme": ids("of acme"), "tenant:other": ids("of other")}
    acme = openai.OpenAI(base_url=f"{server.url}/v1", api_key=key_of["acme"], max_retries=0)
    server.clients.append(acme)
    [own] = acme.files.list(purpose="corpus").data
    assert acme.files.content(own.id).text == "of acme"
    foreign = next(one["id"] for one in listed(server, key_of["ops"]) if one["owner"] == "tenant:other")
    with pytest.raises(openai.NotFoundError):
        acme.files.delete(foreign)
    headers = {"authorization": f"Bearer {key_of['acme']}"}
    assert httpx2.delete(f"{server.url}/admin/corpora/{foreign}", headers=headers).status_code == 403
    assert httpx2.get(f"{server.url}/admin/corpora", headers=headers).status_code == 403
    assert len(engine.corpora["tenant:other"]) == 1


def test_operators_give_a_route_a_corpus(serve: Serve, keys: tuple[Keys, dict[str, str]]) -> None:
    known, key_of = keys
    server = serve(engine := FakeEngine(), known)
    refused = put(server, "text", key_of["acme"], route="/v1/chat/completions")
    assert (refused.status_code, refused.json()["error"]["param"]) == (403, "route")
    unknown = put(server, "text", key_of["ops"], route="/v1/nothing")
    assert unknown.status_code == 400
    assert "'/v1/nothing'; allowed: /v1/chat/completions, /v1/completions" in unknown.json()["error"]["message"]
    assert put(server, "text", key_of["ops"], route="/v1/chat/completions").status_code == 200
    assert engine.corpora == {"route:chat-completions": ids("text")}
    headers = {"authorization": f"Bearer {key_of['acme']}"}
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
    httpx2.post(f"{server.url}/v1/chat/completions", json=body, headers=headers).raise_for_status()
    assert engine.requests[-1].traffic_class.partition("/")[0] == "chat-completions", "the name of its owner"


def test_what_is_no_text_or_too_much_is_refused_and_not_kept(serve: Serve) -> None:
    server = serve(engine := FakeEngine(), corpus_tokens=10, limits={"corpus_tokens_in_all": 12, "start_drafts": 0})
    wrong = put(server, b"ab\xff")
    assert wrong.status_code == 400
    assert "not UTF-8: invalid start byte at byte 2" in wrong.json()["error"]["message"]
    assert put(server, "12345678").status_code == 200
    refused = put(server, "123")
    assert refused.status_code == 413
    assert refused.json()["error"]["message"] == (
        "The corpus has 3 tokens, those before it 8; allowed: 10 together (corpus_tokens)."
    )
    in_all = put(server, "12345", route="/v1/completions")
    assert "allowed: 12 together (limits.corpus_tokens_in_all)" in in_all.json()["error"]["message"]
    assert put(server, "x" * (MOST_BYTES + 1)).status_code == 413
    assert len(server.openai().files.list().data) == 1
    assert engine.corpora == {"tenant:": ids("12345678")}
    assert put(server, "12").status_code == 200


def test_a_server_that_starts_later_gets_what_is_stored_and_drops_what_expires(serve: Serve, sqlite: str) -> None:
    put(serve(), "old")
    put(serve(), "new")
    later = serve(engine := FakeEngine(), corpus_tokens=4)
    wait_for(lambda: engine.corpora == {"tenant:": ids("new")})
    assert [one["tokens"] for one in listed(later)] == [3, 3]
    with sqlite3.connect(sqlite.removeprefix("sqlite:///")) as store:
        store.execute("UPDATE files SET expires_at = 1")
    wait_for(lambda: engine.corpora == {"tenant:": ()})


def test_acts_are_audited(serve: Serve) -> None:
    server = serve()
    first, second = put(server, "one").json()["id"], put(server, "two").json()["id"]
    server.openai().files.delete(first)
    httpx2.delete(f"{server.url}/admin/corpora/{second}")

    def acts() -> set[tuple[str, str]]:
        entries = httpx2.get(f"{server.url}/admin/audit").json()["entries"]
        about = [entry for entry in entries if entry["action"] in ("corpus.added", "corpus.removed", "file.deleted")]
        return {(entry["action"], entry["details"]["subject"]) for entry in about}

    expected = {
        ("corpus.added", first),
        ("corpus.added", second),
        ("file.deleted", first),
        ("corpus.removed", second),
    }
    wait_for(lambda: acts() == expected)


class OfExamples:
    """Corpora of a server whose policy has rules of learning, on a clock that is told to go on."""

    def __init__(self, store: Store, *, in_all: int = 100, **blocks: tuple[str, ...]) -> None:
        """`blocks`: tenants who agree, by rule. `in_all`: most tokens of all corpora; 20 are of one tenant."""
        self.engine, self.clock, self.store = FakeEngine(), Clock(), store
        self.metrics = Metrics()
        self.blocks = {rule: LearningTerms(tenants=tenants) for rule, tenants in blocks.items()}
        context = Context(
            config=ServerConfig(corpus_tokens=20, limits={"corpus_tokens_in_all": in_all}),  # type: ignore[arg-type]
            client=self.engine,
            metrics=self.metrics,
            store=store,
            emit=discard,
            monotonic=self.clock,
        )
        self.corpora = Corpora(context, ByteTokenizer(), Intake(Uploads(2**16)), lambda: self.blocks)

    async def after(self, seconds: float = 0.0) -> dict[str, tuple[bytes, ...]]:
        """Return the engine's corpora so many seconds later."""
        self.clock.now += seconds
        await self.corpora.tick()
        return self.engine.corpora


ACME, OTHER = (f"requests:{cache_salt_of(tenant, None)}" for tenant in ("acme", "other"))


def served_example(number: int, **changes: object) -> Example:
    return replace(example(number, at=float(number)), tokenizer=INFO.tokenizer, **changes)  # type: ignore[arg-type]


def tokens(*examples: Example) -> tuple[bytes, ...]:
    return tuple(array("i", [*kept.prompt, *kept.answer]).tobytes() for kept in examples)


async def test_the_newest_examples_of_those_who_agree_are_drafted_from(store: Store) -> None:
    mine = [served_example(number) for number in range(1, 7)]  # of five tokens each
    others = [served_example(number, tenant="other") for number in range(11, 13)]
    unread = [replace(served_example(10, tenant="other"), tokenizer="another"), served_example(22, tenant="withdrawn")]
    keep(store.database, *mine, *others, *unread)
    server = OfExamples(store, code=("acme", "other"))
    assert await server.after() == {ACME: tokens(*mine[2:]), OTHER: tokens(*others)}
    assert server.metrics.registry.get_sample_value("prolepsis_corpus_tokens") == 30
    keep(store.database, newer := served_example(7))
    assert await server.after(EXAMPLES_S - 1.0) == {ACME: tokens(*mine[2:]), OTHER: tokens(*others)}
    assert (await server.after(1.0))[ACME] == tokens(*mine[3:], newer)


async def test_all_examples_together_have_a_bound(store: Store) -> None:
    examples = [served_example(1), served_example(2, tenant="other"), served_example(3, tenant="third")]
    keep(store.database, *examples)
    server = OfExamples(store, in_all=14, code=("acme", "other", "third"))
    assert await server.after() == {ACME: tokens(examples[0]), OTHER: tokens(examples[1])}


async def test_examples_of_a_tenant_who_agrees_no_longer_leave_at_once(store: Store) -> None:
    keep(store.database, served_example(1))
    server = OfExamples(store, code=("acme",))
    assert await server.after() != {}
    server.blocks = {}
    assert await server.after() == {ACME: ()}


async def test_nothing_forgotten_is_drafted_from(store: Store) -> None:
    keep(store.database, served_example(1), other := served_example(2, tenant="other"))
    server = OfExamples(store, code=("acme", "other"))
    assert len(await server.after()) == 2
    forget(store.database, tenant="acme")
    assert await server.after() == {ACME: (), OTHER: ()}
    assert (await server.after(FORGETTING_S - 1.0))[OTHER] == ()
    assert await server.after(1.0) == {ACME: (), OTHER: tokens(other)}


async def test_uploads_take_the_room_of_examples_at_once(store: Store, serve: Serve) -> None:
    keep(store.database, examples := served_example(1, tenant=""))
    server = OfExamples(store, in_all=20, code=("",))
    assert await server.after() == {"requests:": tokens(examples)}
    put(serve(), "sixteen letters ", name="a.py")
    assert await server.after() == {"tenant:": ids("sixteen letters "), "requests:": ()}


def test_only_requests_without_a_salt_draft_from_examples(serve: Serve, keys: tuple[Keys, dict[str, str]]) -> None:
    """Others may be of another user of the tenant, who could time what a user wrote."""
    known, key_of = keys
    server = serve(engine := FakeEngine(), known)
    headers = {"authorization": f"Bearer {key_of['acme']}"}
    for salt in ({}, {"cache_salt": "user"}):
        body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], **salt}
        httpx2.post(f"{server.url}/v1/chat/completions", json=body, headers=headers).raise_for_status()
    plain, salted = (owners("acme", each.traffic_class, each.cache_salt) for each in engine.requests[-2:])
    assert ACME in plain
    assert ACME not in salted
