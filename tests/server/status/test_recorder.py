"""Each request that ended is recorded once, by how it ended; the server's own acts are in the audit log."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import Any

import httpx2
import pytest
from msgspec import structs
from sqlalchemy import Row

from prolepsis.control.audit import chain
from prolepsis.control.controls.flag_file import FlagFile
from prolepsis.control.policy.runtime import Policies
from prolepsis.control.policy.source import NOT_READ, GivenPolicy
from prolepsis.control.rollout.runtime import Rollouts
from prolepsis.control.store import records
from prolepsis.control.store.store import Store
from prolepsis.core.audit_event import AuditEvent
from prolepsis.core.config import ServerConfig
from prolepsis.core.errors import DeadlineExceeded
from prolepsis.core.events import Event, Tokens
from prolepsis.core.requests import GenerateRequest
from prolepsis.server.front.key_file import KeyFile, new_key
from prolepsis.server.front.keys import Keys
from tests.control.controls.flag_files import flag, write
from tests.control.rollout.test_observation import POLICY
from tests.control.store.fakes import append, latest_records
from tests.server.fakes import FakeEngine
from tests.world.site import Site

BODY: dict[str, Any] = {"model": "tiny", "prompt": "Hi", "max_tokens": 40}


Connect = Callable[..., httpx2.AsyncClient]


@pytest.fixture
def connect(store: Store) -> Connect:
    return lambda *args: Site(*args, store=store).http


def recorded(store: Store) -> Sequence[Row[Any]]:
    assert store.writer.flush(20.0)
    with store.database.read() as connection:
        return latest_records(connection, 10)


async def test_a_finished_request_is_recorded_with_its_figures(store: Store, connect: Connect) -> None:
    client = connect(FakeEngine())
    reply = (await client.post("/v1/completions", json=BODY)).json()
    [record] = recorded(store)
    assert (record.terminal, record.error) == ("finished", None)
    assert (record.answer_id, record.route, record.model) == (reply["id"], "/v1/completions", "tiny")
    assert (record.tenant, record.tier, record.mode, record.reason) == ("", "standard", "on", "speculating")
    assert record.num_prompt_tokens == 2
    assert record.num_output_tokens == reply["usage"]["completion_tokens"]
    assert record.proposers["suffix"]["num_accepted"] == 3
    ready = (await client.get("/health/ready")).json()["store"]
    assert ready == {"ok": True, "num_queued": 0, "written": {"request": 1}, "dropped": {}}


async def test_prompts_of_one_request_and_streams_are_recorded_each(store: Store, connect: Connect) -> None:
    client = connect(FakeEngine())
    await client.post("/v1/completions", json={**BODY, "prompt": ["a", "b"]})
    await client.post(
        "/v1/chat/completions",
        json={"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "stream": True, "stop": "world"},
    )
    found = recorded(store)
    assert sorted(record.route for record in found) == ["/v1/chat/completions", "/v1/completions", "/v1/completions"]
    assert {record.terminal for record in found} == {"finished"}
    assert len({record.record_id for record in found}) == 3


async def test_a_request_that_fails_is_recorded_with_its_code(store: Store, connect: Connect) -> None:
    client = connect(FakeEngine(fail_after=1, error=DeadlineExceeded("too late")))
    assert (await client.post("/v1/completions", json=BODY)).status_code == 504
    [record] = recorded(store)
    assert (record.terminal, record.error) == ("failed", "deadline_exceeded")


class Drafting(FakeEngine):
    """All tokens of a step but the last were drafted."""

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Event, None]:
        async for event in super().generate(request):
            if isinstance(event, Tokens):
                yield structs.replace(event, accepted_by=("suffix",) * (len(event.token_ids) - 1))
            else:
                yield event


@pytest.mark.parametrize(("stream", "delivered"), [(False, 0), (True, 2)])
async def test_a_whole_answer_that_fails_counts_as_not_delivered(
    store: Store, connect: Connect, stream: bool, delivered: int
) -> None:
    client = connect(Drafting(fail_after=1, error=DeadlineExceeded("too late")))
    await client.post("/v1/completions", json={**BODY, "stream": stream})
    [record] = recorded(store)
    assert record.proposers["suffix"]["num_delivered"] == delivered
    [counted] = (await client.get("/admin/health")).json()["delivery"]["delivered"]
    assert counted["num_delivered"] == delivered


async def test_requests_of_clients_that_leave_and_of_a_server_that_stops_are_recorded(
    store: Store, connect: Connect
) -> None:
    engine = FakeEngine(hold_after=1)
    client = connect(engine)
    asking = asyncio.create_task(client.post("/v1/completions", json=BODY))
    await engine.held.wait()
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    [left] = recorded(store)
    assert (left.terminal, left.num_output_tokens, left.num_prompt_tokens) == ("left", 3, 2)

    stopping = FakeEngine(hold_after=1)
    asking = asyncio.create_task(connect(stopping).post("/v1/completions", json=BODY))
    await stopping.held.wait()
    await stopping.close()
    assert (await asking).status_code == 503
    assert [record.terminal for record in recorded(store)] == ["aborted", "left"]


async def test_a_share_of_requests_is_recorded(store: Store, connect: Connect) -> None:
    client = connect(FakeEngine(), ServerConfig(store_sample=0.0))
    assert (await client.post("/v1/completions", json=BODY)).status_code == 200
    assert recorded(store) == []


async def test_a_stored_answer_is_recorded_as_such(store: Store, connect: Connect) -> None:
    client = connect(FakeEngine(), ServerConfig(response_cache_bytes=2**20))
    for _ in range(2):
        await client.post("/v1/completions", json={**BODY, "temperature": 0})
    assert {record.reason for record in recorded(store)} == {"speculating", "response_cache"}


async def test_without_a_store_nothing_is_said_of_one() -> None:
    async with Site().http as client:
        assert (await client.post("/v1/completions", json=BODY)).status_code == 200
        assert (await client.get("/health/ready")).json()["store"] is None


def test_texts_of_prompt_and_answer_are_not_in_the_file(store: Store, tmp_path: Path) -> None:
    async def ask() -> None:
        async with Site(FakeEngine(text="an answer nobody keeps"), store=store).http as client:
            await client.post("/v1/completions", json={**BODY, "prompt": "a prompt nobody keeps"})

    asyncio.run(ask())
    append(store, AuditEvent(actor="ann", action="a"))
    assert len(recorded(store)) == 1
    with store.database.read() as connection:
        assert chain.head(connection)[0] == 1
    assert b"nobody keeps" not in b"".join(file.read_bytes() for file in tmp_path.iterdir())


async def test_a_tenant_in_never_record_has_no_record_of_any_kind(store: Store, tmp_path: Path) -> None:
    file = KeyFile(tmp_path / "keys.json")
    policy = "never_record: [hospital]\nrules: [{name: all, match: {}, mode: on}]"
    keys = {tenant: new_key(tenant, roles=["client", "admin"]) for tenant in ("hospital", "acme")}
    for record, _ in keys.values():
        file.add(record)
    site = Site(
        folder=tmp_path, policy=policy, store=store, keys=Keys(file), config=ServerConfig(idempotency_ttl_s=60.0)
    )
    clients = {tenant: site.client(authorization=f"Bearer {key}") for tenant, (_, key) in keys.items()}
    await clients["acme"].post("/admin/recording", json={})
    for tenant, client in clients.items():
        body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
        assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
        for attempt in ("first", "again"):
            headers = {"idempotency-key": "k", "x-request-id": f"{attempt}-{tenant}"}
            assert (await client.post("/v1/completions", json=BODY, headers=headers)).status_code == 200
    assert {(record.tenant, record.route) for record in recorded(store)} == {
        ("acme", "/v1/completions"),
        ("acme", "/v1/chat/completions"),
    }
    with store.database.read() as connection:
        assert records.answers_of_retries(connection, ["again-acme"], 10)
        assert not records.answers_of_retries(connection, ["again-hospital"], 10)
    assert (await clients["acme"].get("/admin/recording")).json()["num_requests"] == 2
    for tenant, is_kept in (("hospital", False), ("acme", True)):
        sample = {"request": {"model": "tiny", "prompt": "Hi"}, "tenant": tenant}
        reply = await clients["acme"].post("/admin/policy/explain", json=sample)
        assert reply.json()["in_effect"]["recorded"] is is_kept


async def test_nothing_is_recorded_while_it_is_not_known_who_forbids_it(tmp_path: Path) -> None:
    policies = Site(policy=GivenPolicy(NOT_READ)).feature(Policies)
    assert not policies.records("acme")
    policies = Site(policy=GivenPolicy()).feature(Policies)
    assert policies.records("acme"), "without a policy no tenant forbids it"


async def test_run_and_arm_of_a_rollout_are_recorded(store: Store, tmp_path: Path) -> None:
    site = Site(folder=tmp_path, policy=POLICY, store=store)
    rollouts = site.feature(Rollouts)
    [view] = await rollouts.views()
    await rollouts.command(view.id, "start", "")
    await site.post("/v1/completions", **BODY)
    [record] = recorded(store)
    assert record.rollout_run is not None
    assert record.rollout_run.startswith(f"{view.id}#")
    assert record.arm in ("canary", "unassigned", "holdout")
    assert record.policy_rule is not None


async def test_flag_decisions_are_recorded_with_their_reason(store: Store, tmp_path: Path) -> None:
    flags = FlagFile(write(tmp_path / "flags.json", flag(), also={"new": flag(default="off")}))
    config = ServerConfig(controls_file=tmp_path / "controls.json")
    policy = "rules: [{name: new, match: {flag: new}, mode: on}]"
    await Site(config=config, folder=tmp_path, policy=policy, flags=flags, store=store).post("/v1/completions", **BODY)
    [record] = recorded(store)
    assert record.flags == {
        "new": {"variant": "off", "reason": "STATIC"},
        "speculation.enabled": {"variant": "on", "reason": "STATIC"},
    }
