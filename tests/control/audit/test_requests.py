"""Requests in the audit log: what is kept of each, who may read it, and that it can be decoded again."""

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import httpx2
import pytest

from prolepsis.control.audit import chain
from prolepsis.control.audit.entry import AuditEntry
from prolepsis.control.audit.log import forget_tenant
from prolepsis.control.audit.requests import AuditFeature
from prolepsis.control.audit.routes import recorded_in
from prolepsis.control.audit.verify import verify
from prolepsis.control.policy.runtime import Policies
from prolepsis.control.store.store import Store
from prolepsis.core.config import ServerConfig
from prolepsis.core.engine_client import EngineClient
from prolepsis.core.errors import DeadlineExceeded, InvalidParameter
from prolepsis.core.events import Finished, Proposed, Tokens
from prolepsis.core.recording import Recording, parse, plain
from prolepsis.core.requests import GenerateRequest, GrammarSpec, SamplingParams
from prolepsis.remote.engines import Engines
from prolepsis.remote.members import FailoverSettings, Member
from prolepsis.server.front.key_file import KeyFile, new_key
from prolepsis.server.front.keys import Keys
from tests.control.correctness.test_runtime import BODY, table
from tests.control.rollout.test_observation import ended
from tests.fake_client import INFO
from tests.remote.scripted_engines import ELSEWHERE, LENGTH, Speaker
from tests.server.fakes import ByteTokenizer, FakeEngine
from tests.waiting import until
from tests.world.site import Site

ASKED = {"model": "tiny", "prompt": "Say hi", "max_tokens": 40, "seed": 7, "stop": ["@@"]}


def kept(store: Store) -> list[AuditEntry]:
    """Return the entries so far except those about keys; the chain holds."""
    assert store.writer.flush(20.0)
    with store.database.read() as connection:
        entries = list(chain.entries(connection))
    assert verify(entries).faults == ()
    return [entry for entry in entries if not entry.action.startswith("keys.")]


def after_of(entry: AuditEntry) -> dict[str, Any]:
    assert entry.details is not None
    assert isinstance(entry.details.after, dict)
    return entry.details.after


def whole(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in folder.iterdir())


async def ask(store: Store, engine: EngineClient, body: dict[str, Any], **settings: Any) -> httpx2.Response:
    config = ServerConfig(**{"audit_sample": 1.0, **settings})
    async with Site(engine, config, store=store).http as http:
        return await http.post("/v1/completions", json=body)


async def test_drafts_verdicts_seed_and_versions_are_kept_and_no_text(store: Store) -> None:
    client = table()
    reply = await ask(store, client, {**BODY, "n": 2})
    await client.close()
    [entry] = kept(store)
    after = after_of(entry)
    assert (entry.action, after["answer_id"], after["end"]) == ("request.served", reply.json()["id"], "finished")
    assert (after["mode"], after["reason"], after["exactness"]) == ("on", "speculating", "strict")
    assert (after["sampling"]["seed"], after["sampling"]["temperature"]) == (3, 1.0)
    assert after["num_output_tokens"] == [40, 40]
    assert entry.versions["fingerprint"] == "fp"
    group = {"weights", "tokenizer", "forward", "exactness", "machine"}
    assert set(entry.versions) == {"prolepsis", "model", "fingerprint", "draft_head", "plan", *group}
    samples, proposers, drafted, emitted = zip(*after["rounds"], strict=True)
    assert (set(samples), set(proposers)) == ({0, 1}, {"scripted"})
    counts = after["proposers"]["scripted"]
    assert sum(emitted) - len(emitted) >= counts["num_accepted"] > 0
    assert sum(drafted) == counts["num_draft_tokens"]
    assert not {"prompt", "outputs", "recording"} & set(after)
    assert len({after["prompt_digest"], *after["output_digests"]}) == 3


async def test_an_answer_of_several_engines_is_marked(store: Store) -> None:
    members = [Member(Speaker(2, "dead")), Member(Speaker(info=ELSEWHERE))]
    client = Engines(members, settings=FailoverSettings(outside_group="continue"))
    reply = await ask(store, client, {**ASKED, "speculation": {"metrics": True}})
    assert reply.status_code == 200, reply.text
    await client.close()
    [entry] = kept(store)
    after = after_of(entry)
    [mark] = after["continued"]
    assert (mark["loss"], mark["num_tokens"]) == ("engine_dead", 2)
    assert after["not_exact"] == ["forward fake recorded, another here"]
    assert reply.json()["metrics"]["not_exact"] == after["not_exact"]
    assert reply.json()["usage"]["completion_tokens"] == LENGTH


async def test_texts_are_kept_redacted(store: Store) -> None:
    body = {**ASKED, "prompt": "Write to ann@example.org", "stop": ["bob@example.org"]}
    await ask(store, FakeEngine(text="Call +49 30 901820 or pay 4111 1111 1111 1111."), body, audit_content="text")
    after = after_of(kept(store)[0])
    assert after["prompt"] == "Write to [EMAIL]"
    [output] = after["outputs"]
    assert "[PHONE]" in output
    assert "901820" not in output
    assert after["sampling"]["stop"] == ["[EMAIL]"]
    assert "recording" not in after


@pytest.mark.parametrize(
    ("changes", "answer"),
    [
        ({"prompt": "Write to ann@example.org"}, "ok"),
        ({}, "Write to ann@example.org"),
        ({"stop": ["ann@example.org"]}, "ok"),
    ],
)
async def test_tokens_are_kept_only_where_redaction_finds_nothing(
    store: Store, tmp_path: Path, changes: dict[str, Any], answer: str
) -> None:
    await ask(store, FakeEngine(text=answer), {**ASKED, **changes}, audit_content="tokens")
    await ask(store, FakeEngine(text="ok"), ASKED, audit_content="tokens")
    personal, free = kept(store)
    assert after_of(personal)["replayable"] is False
    assert "recording" not in after_of(personal)
    assert after_of(free)["replayable"] is True
    recorded = recorded_in(free)
    assert bytes(recorded.request.prompt_token_ids) == b"Say hi"
    assert (recorded.request.params.seed, recorded.request.params.stop) == (7, ("@@",))
    assert bytes(recorded.tokens[0][:2]) == b"ok"
    ids = ",".join(map(str, b"ann@example.org")).encode()
    assert not any(secret in whole(tmp_path) for secret in (b"ann@example.org", ids))


async def test_drafted_tokens_are_redacted_too(store: Store) -> None:
    class Drafting(FakeEngine):
        async def generate(self, request: GenerateRequest) -> Any:
            draft = tuple(b"ann@example.org")
            proposed = Proposed(draft, tuple(range(-1, len(draft) - 1)), "suffix")
            yield Tokens(request.request_id, 0, (111, 107), finish_reason="stop", proposed=proposed, position=0)
            yield Finished(request.request_id, self._stats(request, 2))

    await ask(store, Drafting(), ASKED, audit_content="tokens")
    [entry] = kept(store)
    assert after_of(entry)["rounds"] == [[0, "suffix", 15, 2]]
    assert after_of(entry)["replayable"] is False


async def test_drafts_are_kept_whole_with_tokens(store: Store) -> None:
    client = table()
    await ask(store, client, BODY, audit_content="tokens")
    await client.close()
    rounds = after_of(kept(store)[0])["rounds"]
    assert len(rounds) > 5
    for sample, proposer, num_tokens, num_emitted, tokens, parents in rounds:
        assert (sample, proposer, num_tokens, parents) == (0, "scripted", len(tokens), list(range(-1, num_tokens - 1)))
        assert 1 <= num_emitted <= num_tokens + 1


async def test_without_the_setting_nothing_is_kept(store: Store) -> None:
    await ask(store, FakeEngine(), ASKED, audit_sample=0.0)
    assert kept(store) == []


async def test_a_rule_says_what_is_kept_of_its_requests(store: Store, tmp_path: Path) -> None:
    text = (
        "default: {mode: on}\n"
        "rules:\n"
        "  - {name: bank, match: {temperature: {max: 0}}, mode: off, audit: {content: tokens}}\n"
        "  - {name: quiet, match: {max_tokens: {max: 5}}, mode: on, audit: {percentage: 0}}\n"
    )
    site = Site(config=ServerConfig(audit_sample=1.0), folder=tmp_path, policy=text, store=store)
    async with site.http as http:
        for changes in ({"temperature": 0}, {"max_tokens": 5}, {}):
            assert (await http.post("/v1/completions", json={**ASKED, **changes})).status_code == 200
    _, bank, default = kept(store)  # the first one is of the policy
    assert (after_of(bank)["rule"], "recording" in after_of(bank)) == ("bank", True)
    assert (after_of(default)["rule"], "prompt" in after_of(default)) == ("default", False)
    assert bank.versions["policy"] == site.feature(Policies).version


async def test_requests_that_failed_are_kept_with_what_came(store: Store) -> None:
    await ask(store, FakeEngine(fail_after=2, error=DeadlineExceeded("too late")), ASKED, audit_content="tokens")
    [entry] = kept(store)
    assert (after_of(entry)["end"], after_of(entry)["error"]) == ("failed", "deadline_exceeded")
    assert after_of(entry)["num_output_tokens"] == [6]


@pytest.fixture
def connect(tmp_path: Path, store: Store) -> Any:
    """Return a function from an engine and roles to a client of a server."""
    file = KeyFile(tmp_path / "keys.json")

    def client(engine: EngineClient, *roles: str, **settings: Any) -> httpx2.AsyncClient:
        record, key = new_key("acme", roles=roles)
        file.add(record)
        config = ServerConfig(**{"audit_sample": 1.0, "audit_content": "tokens", **settings})
        site = Site(engine, config, keys=Keys(file), store=store)
        return site.client(**{"authorization": f"Bearer {key}", "x-key": record.id})

    return client


@pytest.mark.parametrize(
    ("role", "status"), [("client", 403), ("viewer", 403), ("operator", 403), ("auditor", 200), ("admin", 200)]
)
async def test_auditors_read(connect: Any, store: Store, role: str, status: int) -> None:
    engine = FakeEngine()
    await connect(engine, "client").post("/v1/completions", json=ASKED)
    [entry] = kept(store)
    http = connect(engine, role)
    for path in ("/admin/audit", f"/admin/audit/{entry.seq}"):
        assert (await http.get(path)).status_code == status
    assert (await http.post(f"/admin/audit/{entry.seq}/replay")).status_code == status


async def test_entries_are_read_as_they_are_chained(connect: Any, store: Store) -> None:
    engine = FakeEngine()
    asks, reads = connect(engine, "client"), connect(engine, "auditor")
    for _ in range(3):
        await asks.post("/v1/completions", json=ASKED)
    entries = kept(store)
    shown = (await reads.get("/admin/audit", params={"last": 2})).json()
    first, second, third = (entry.seq for entry in entries)
    assert [one["seq"] for one in shown["entries"]] == [second, third]
    assert shown["head"] == f"{third}:{entries[-1].digest}"
    after = (await reads.get("/admin/audit", params={"after": first, "last": 1})).json()
    assert [one["seq"] for one in after["entries"]] == [second]
    assert (await reads.get("/admin/audit", params={"tenant": "other"})).json()["entries"] == []
    assert (await reads.get("/admin/audit", params={"action": "request.served"})).json()["entries"]
    by_number = (await reads.get(f"/admin/audit/{second}")).json()
    assert (await reads.get(f"/admin/audit/{by_number['details']['subject']}")).json() == by_number
    for params in ({"last": "0"}, {"last": "many"}, {"newest": "1"}):
        assert (await reads.get("/admin/audit", params=params)).status_code == 400
    for name in ("9", "nobody", "9" * 40):
        assert (await reads.get(f"/admin/audit/{name}")).status_code == 404
    assert (await reads.get("/admin/audit/a%00b")).status_code == 400


async def test_a_recorded_request_is_decoded_again_by_hand(connect: Any, store: Store) -> None:
    client = table()
    body = {**BODY, "n": 2}
    assert (await connect(client, "client").post("/v1/completions", json=body)).status_code == 200
    [entry] = kept(store)
    auditor = connect(client, "auditor")
    said = (await auditor.post(f"/admin/audit/{entry.seq}/replay")).json()
    assert (said["outcome"], said["num_tokens"], said["differences"]) == ("match", 80, [])
    [_, replayed] = kept(store)
    assert replayed.details is not None
    assert (await auditor.post(f"/admin/audit/{replayed.details.subject}/replay")).json()["seq"] == entry.seq
    assert (replayed.action, after_of(replayed)) == ("request.replayed", {"entry": entry.seq, "outcome": "match"})
    assert replayed.details is not None
    assert (replayed.details.actor, replayed.details.tenant) == (auditor.headers["x-key"], "acme")
    await client.close()


async def test_a_busy_server_refuses_a_replay_at_once_and_says_when_to_try_again(connect: Any, store: Store) -> None:
    engine = FakeEngine()
    http = connect(engine, "client", "auditor", limits={"replay_beside": 0})
    assert (await http.post("/v1/completions", json=ASKED)).status_code == 200
    [entry] = kept(store)
    engine.hold_after = 0
    asking = asyncio.create_task(http.post("/v1/completions", json=ASKED))
    await until(lambda: len(engine.requests) == 2)
    refused = await http.post(f"/admin/audit/{entry.seq}/replay")
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
    assert "make way" in refused.json()["error"]["message"]
    asking.cancel()


async def test_another_answer_than_was_recorded_is_found(connect: Any, store: Store) -> None:
    client = table(flawed=True)
    await connect(client, "client").post("/v1/completions", json=BODY)
    [entry] = kept(store)
    said = (await connect(client, "auditor").post(f"/admin/audit/{entry.seq}/replay")).json()
    assert said["outcome"] == "structural"
    assert said["differences"][0]["sample"] == 0
    await client.close()


async def test_the_reason_why_a_request_cannot_be_replayed_is_named(connect: Any, store: Store) -> None:
    engine = FakeEngine()
    await connect(engine, "client").post("/v1/completions", json={**ASKED, "prompt": "ann@example.org"})
    await connect(engine, "client", audit_content="text").post("/v1/completions", json=ASKED)
    await connect(engine, "client").post("/v1/completions", json=ASKED)
    first, second, third = (entry.seq for entry in kept(store))
    auditor = connect(engine, "auditor")
    redacted = await auditor.post(f"/admin/audit/{first}/replay")
    assert (redacted.status_code, "its text was redacted" in redacted.text) == (400, True)
    assert "holds no tokens" in (await auditor.post(f"/admin/audit/{second}/replay")).text
    assert (await auditor.post(f"/admin/audit/{third}/replay")).status_code == 200
    assert len(kept(store)) == 4
    forget_tenant(store.database, "acme", "ann")
    erased = await auditor.post(f"/admin/audit/{third}/replay")
    assert (erased.status_code, "has been erased" in erased.text) == (400, True)
    assert kept(store)[2].details is None
    last = kept(store)[-1].seq
    assert "it is of tenant.forgotten" in (await auditor.post(f"/admin/audit/{last}/replay")).text


async def test_a_record_of_another_model_is_not_compared(connect: Any, store: Store) -> None:
    await connect(FakeEngine(), "client").post("/v1/completions", json=ASKED)
    [entry] = kept(store)
    other = table()
    refused = await connect(other, "auditor").post(f"/admin/audit/{entry.seq}/replay")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "other_model")
    await other.close()


async def test_without_a_store_there_are_no_entries() -> None:
    async with Site().http as http:
        assert (await http.get("/admin/audit")).json() == {
            "head": f"0:{'0' * 64}",
            "signed_head": None,
            "entries": [],
            "changes": None,
        }
        assert (await http.get("/admin/audit/1")).status_code == 404


async def test_entries_are_put_together_off_the_event_loop(store: Store) -> None:
    class Watched(ByteTokenizer):
        threads: ClassVar[set[str]] = set()

        def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
            if list(token_ids) == list(b"Say hi"):
                self.threads.add(threading.current_thread().name)
            return super().decode(token_ids, skip_special_tokens=skip_special_tokens)

    config = ServerConfig(audit_sample=1.0, audit_content="tokens")
    async with Site(FakeEngine(text="ok"), config, tokenizer=Watched(), store=store).http as http:
        await http.post("/v1/completions", json=ASKED)
    assert len(kept(store)) == 1
    assert Watched.threads == {"store-writer"}


def test_the_queue_is_bounded_and_lost_entries_are_counted(store: Store) -> None:
    async def no_replay(recorded: Recording, within_s: float) -> Any:
        raise AssertionError("nothing is replayed")

    feature = AuditFeature(store, str, lambda: INFO, no_replay, lambda _: None, sample=1.0, max_pending_tokens=2)

    def serve() -> None:
        shown = ended("stop")  # one token
        feature.keeps(shown.about, shown.prompts[0].request)
        feature.on_request_end(shown)

    with store.database.write():  # holds the writer up
        for _ in range(3):
            serve()
        assert store.writer.health().dropped == {"audit": 1}
    assert len(kept(store)) == 2
    serve()
    assert len(kept(store)) == 3


def test_a_recording_survives_as_plain_values() -> None:
    params = SamplingParams(temperature=0.3, logit_bias=((1, -2.5),), stop=("a",), stop_token_ids=(4,), seed=2**62)
    request = GenerateRequest("r", (1, 2), params, n=2, grammar=GrammarSpec("regex", "a+"))
    recorded = Recording(request, ((3,), (4, 5)))
    assert parse(plain(recorded), "r") == recorded
    with pytest.raises(InvalidParameter, match=r"the recording is damaged: tokens"):
        parse({**plain(recorded), "tokens": "none"}, "r")
