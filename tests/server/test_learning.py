"""Consent to learning, over HTTP: a request becomes an example if its caller and the operator agreed, and not else."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from prolepsis.control.learning.capture import UPKEEP, UPKEEP_S, CaptureFeature
from prolepsis.control.store.examples import ExampleTable
from prolepsis.control.store.store import Store
from prolepsis.control.store.turns import PeriodicWork
from prolepsis.core.config import LimitTerms, ServerConfig
from prolepsis.core.errors import ConfigError
from prolepsis.core.learning import Example
from prolepsis.server.front.key_file import KeyFile, new_key
from prolepsis.server.front.keys import Keys
from tests.server.batches.conftest import chat_line, jsonl
from tests.server.fakes import FakeEngine
from tests.waiting import until
from tests.world.site import Site

POLICY = """
rules:
  - name: code
    match: {tenant: acme}
    mode: on
    learning: {tenants: [acme], max_prompt_tokens: 200}
  - name: others
    match: {tenant: other}
    mode: on
"""
ANSWER = "A tale of sixteen tokens and more."
HI = [{"role": "user", "content": "Tell a tale"}]
YES = {"speculation": {"learn": True}}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "tiny", "messages": HI},
    "/v1/completions": {"model": "tiny", "prompt": "Tell a tale"},
    "/v1/responses": {"model": "tiny", "input": "Tell a tale"},
    "/v1/messages": {"model": "tiny", "max_tokens": 99, "messages": HI},
    "/api/chat": {"model": "tiny", "messages": HI, "stream": False},
    "/api/generate": {"model": "tiny", "prompt": "Tell a tale", "stream": False},
    "/completion": {"model": "tiny", "prompt": "Tell a tale"},
}
CHAT = BODIES["/v1/chat/completions"]


class Learning:
    """A server with the keys of two tenants, whose examples are all worth keeping."""

    def __init__(self, folder: Path, store: Store, policy: str = POLICY) -> None:
        file, self._keys = KeyFile(folder / "keys.json"), dict[str, str]()
        for tenant in ("acme", "other"):
            record, self._keys[tenant] = new_key(tenant, roles=("client",))
            file.add(record)
        self.site = Site(
            FakeEngine(ANSWER),
            ServerConfig(limits=LimitTerms(start_drafts=0)),
            folder=folder,
            policy=policy,
            store=store,
            keys=Keys(file),
        )
        self.site.feature(CaptureFeature).draw = lambda: 0.0
        self.store = store

    async def ask(
        self, body: dict[str, Any], tenant: str = "acme", path: str = "/v1/chat/completions", **headers: str
    ) -> str:
        """Ask, and return the header `warning`."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        given["authorization"] = f"Bearer {self._keys[tenant]}"
        reply = await self.site.http.post(path, json=body, headers=given)
        assert reply.status_code == 200, reply.text
        return reply.headers.get("warning", "")

    async def post(self, path: str, **given: Any) -> Any:
        headers = {"authorization": f"Bearer {self._keys['acme']}"}
        return (await self.site.http.post(path, headers=headers, **given)).raise_for_status().json()

    async def examples(self, rule: str = "code") -> list[Example]:
        assert await asyncio.to_thread(self.store.writer.flush, 20.0)
        return list(ExampleTable(self.store.database).read(rule))

    def count(self, outcome: str) -> float | None:
        return self.site.sample("learning_examples_total", rule="code", outcome=outcome)


@pytest.fixture
def learning(tmp_path: Path, store: Store) -> Learning:
    return Learning(tmp_path, store)


@pytest.mark.parametrize(
    ("tenant", "body", "header", "is_agreed"),
    [
        ("acme", YES, None, True),
        ("acme", {}, "yes", True),
        ("acme", {"speculation": {"learn": True, "mode": "off"}}, None, True),
        ("acme", {}, None, None),
        ("acme", {"speculation": {"learn": False}}, "yes", None),
        ("acme", YES, "no", None),
        ("other", YES, None, False),
        ("acme", {**YES, "cache_salt": "user-7"}, None, False),
        ("acme", {**YES, "n": 2}, None, False),
    ],
    ids=["yes", "header", "plain", "silent", "body_no", "header_no", "other_tenant", "salt", "two_answers"],
)
async def test_the_request_and_the_operator_both_agree(
    learning: Learning, tenant: str, body: dict[str, Any], header: str | None, is_agreed: bool | None
) -> None:
    """`is_agreed`: None where the caller does not."""
    warning = await learning.ask(CHAT | body, tenant, **({"x_spec_learn": header} if header else {}))
    examples = await learning.examples()
    assert len(examples) == bool(is_agreed)
    assert ("nothing is learnt" in warning) == (is_agreed is False)
    if is_agreed:
        assert (examples[0].tenant, examples[0].rule) == ("acme", "code")
        assert bytes(examples[0].answer[:-1]).decode() == ANSWER
        assert learning.count("kept") == 1
    else:
        assert await learning.examples("others") == []
        assert learning.count("kept") is None


@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        ({"response_format": {"type": "json_object"}}, "shaped"),
        ({"presence_penalty": 0.5}, "shaped"),
        ({"max_tokens": 9}, "too_short"),
        ({"messages": [{"role": "user", "content": "x" * 201}]}, "too_long"),
    ],
)
async def test_what_teaches_nothing_is_counted(learning: Learning, body: dict[str, Any], outcome: str) -> None:
    if outcome == "shaped":
        learning.site.engine.text = '{"tale": "of tokens"}'
    assert await learning.ask(CHAT | YES | body) == ""
    assert await learning.examples() == []
    assert learning.count(outcome) == 1


@pytest.mark.parametrize("path", BODIES)
async def test_every_dialect_agrees_by_header(learning: Learning, path: str) -> None:
    await learning.ask(BODIES[path], path=path)
    await learning.ask(BODIES[path], path=path, x_spec_learn="no")
    assert await learning.examples() == []
    assert await learning.ask(BODIES[path], path=path, x_spec_learn="yes") == ""
    [kept] = await learning.examples()
    assert b"Tell a tale" in bytes(token for token in kept.prompt if token < 256)


async def test_each_prompt_of_a_request_is_an_example(learning: Learning) -> None:
    await learning.ask({**BODIES["/v1/completions"], "prompt": ["One", "Two"], **YES}, path="/v1/completions")
    assert {bytes(kept.prompt) for kept in await learning.examples()} == {b"One", b"Two"}


async def test_the_two_tenants_of_a_rule_that_serves_all_agree_each(tmp_path: Path, store: Store) -> None:
    policy = """
rules:
  - name: code
    match: {model: tiny}
    mode: on
    learning: {tenants: [acme, third], serves: all, min_tenants: 2}
"""
    learning = Learning(tmp_path, store, policy)
    await learning.ask(CHAT | YES)
    assert "nothing is learnt" in await learning.ask(CHAT | YES, "other")
    assert [kept.tenant for kept in await learning.examples()] == ["acme"]


def test_a_tenant_whose_contract_forbids_it_is_in_no_policy(tmp_path: Path, store: Store) -> None:
    with pytest.raises(ConfigError, match="never_learn"):
        Learning(tmp_path, store, "never_learn: [acme]" + POLICY)


async def test_a_line_of_a_batch_agrees_as_a_request_does(learning: Learning) -> None:
    async with learning.site.running():
        files = {"file": ("in.jsonl", jsonl(chat_line("a"), chat_line("b", speculation={"learn": True})))}
        file = await learning.post("/v1/files", data={"purpose": "batch"}, files=files)
        given = {"input_file_id": file["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        batch = await learning.post("/v1/batches", json=given)
        await until(lambda: learning.count("kept") == 1)
    assert batch["id"]
    [kept] = await learning.examples()
    assert bytes(kept.answer[:-1]).decode() == ANSWER


async def test_what_is_kept_is_shown_and_goes_when_consent_is_withdrawn(learning: Learning, tmp_path: Path) -> None:
    await learning.ask(CHAT | YES)
    [kept] = await learning.examples()
    await learning.site.tick("learning_capture")
    assert await learning.examples() == [kept]
    num_bytes = learning.site.sample("learning_bytes", rule="code")
    assert num_bytes is not None
    assert num_bytes > len(kept.prompt) + len(kept.answer)

    (tmp_path / "policy.yaml").write_text(POLICY.replace("acme", "another"))
    await learning.site.tick("policy", "learning_capture")
    assert await learning.examples() == [kept], "another replica had its turn less than an hour ago"
    PeriodicWork(learning.store.database).give_back(UPKEEP)
    await learning.site.tick("learning_capture")
    assert await learning.examples() == []
    assert learning.site.sample("learning_bytes", rule="code") == 0


@pytest.mark.parametrize("policy", [None, "rules: [{name: code, mode: sometimes}]"], ids=["none", "unusable"])
async def test_a_server_that_does_not_know_what_is_wanted_deletes_nothing(
    learning: Learning, policy: str | None, tmp_path: Path
) -> None:
    await learning.ask(CHAT | YES)
    [kept] = await learning.examples()
    if policy is None:
        await Site(store=learning.store).tick("learning_capture")
    else:
        (tmp_path / "policy.yaml").write_text(policy)
        await learning.site.tick("policy", "learning_capture")
    assert await learning.examples() == [kept]
    assert PeriodicWork(learning.store.database).take(UPKEEP, UPKEEP_S), "and leaves the turn to others"
