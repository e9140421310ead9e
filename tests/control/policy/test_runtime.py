"""Policies while serving: terms reach the engine, replies say which rule, edits are taken without a restart."""

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest

from prolepsis.control.policy.learnt import with_champion
from prolepsis.control.policy.runtime import Policies
from prolepsis.control.web.caller import ROLES
from prolepsis.core.config import EngineConfig, ServerConfig
from prolepsis.core.errors import ConfigError
from prolepsis.core.facts import MAX_CLASS_RULES, OTHER_RULES
from prolepsis.core.requests import GenerateRequest, SpeculationChoice
from prolepsis.server.front.key_file import KeyFile, new_key
from prolepsis.server.front.keys import Keys
from prolepsis.server.openai.replies import MetricsReply
from prolepsis.server.run import serve
from tests.server.fakes import FakeEngine
from tests.world.site import NO_START, Site

CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
POLICY = """
version: 1
rules:
  - {name: audit, match: {tenant: bank}, pinned: true}
  - {name: night, match: {headers: {x-job: night}, time: {hours: 22:00-06:00}}, use: batch}
  - {name: agents, match: {tools: true}, mode: on, inside: {text: {mode: off}, call: {num_speculative_tokens: 3}}}
  - {name: long, match: {prompt_tokens: {min: 100}}, mode: on, num_speculative_tokens: 2}
  - {name: json, match: {structured_output: any}, mode: shadow, proposers: [suffix], emit: token}
  - {name: old, match: {route: /v1/completions}, mode: on, proposers: [prediction]}
"""


@dataclass
class PolicyApp:
    folder: Path
    engine: FakeEngine = field(default_factory=FakeEngine)
    time: datetime = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)

    def write(self, text: str) -> None:
        (self.folder / "policy.yaml").write_text(text)

    def open(self, tenant: str = "acme", roles: tuple[str, ...] = ("client",), budget: str = "") -> httpx2.AsyncClient:
        file = KeyFile(self.folder / "keys.json")
        record, key = new_key(tenant, roles=roles, budget=budget)
        file.add(record)
        site = Site(self.engine, NO_START, keys=Keys(file), policy=self.folder / "policy.yaml")
        self.policies = site.feature(Policies)
        self.policies.now = lambda: self.time
        return site.client(authorization=f"Bearer {key}")

    @property
    def last(self) -> GenerateRequest:
        return self.engine.requests[-1]


@pytest.fixture
def policy_app(tmp_path: Path) -> PolicyApp:
    made = PolicyApp(tmp_path)
    made.write(POLICY)
    return made


async def ask(http: httpx2.AsyncClient, route: str = "/v1/chat/completions", **body: Any) -> httpx2.Response:
    shape = CHAT if route == "/v1/chat/completions" else {"model": "tiny"}
    return await http.post(route, json=shape | body)


async def test_where_no_rule_matches_the_default_counts_and_says_so(policy_app: PolicyApp) -> None:
    reply = await ask(policy_app.open(), speculation={"metrics": True})
    assert reply.status_code == 200, reply.text
    assert policy_app.last.speculation == SpeculationChoice("off", "no_rule")
    effective = reply.json()["metrics"]["effective"]
    assert effective["policy_rule"] == "default"
    assert effective["policy_version"].startswith("1@")
    MetricsReply.model_validate(reply.json()["metrics"])
    assert reply.headers["x-spec-effective"].endswith(f";rule=default;policy={effective['policy_version']}")


async def test_terms_reach_the_engine(policy_app: PolicyApp) -> None:
    http = policy_app.open()
    await ask(http, "/v1/completions", prompt="Hi")
    assert policy_app.last.speculation == SpeculationChoice(proposers=("prediction",))
    await ask(http, response_format={"type": "json_object"})
    assert policy_app.last.speculation == SpeculationChoice("shadow", proposers=("suffix",))
    await ask(http, messages=[{"role": "user", "content": "x" * 100}])
    assert policy_app.last.speculation == SpeculationChoice(num_speculative_tokens=2)
    await ask(http, "/v1/completions", prompt=["short", "y" * 100])  # the longest counts, for all of them
    assert [request.speculation.num_speculative_tokens for request in policy_app.engine.requests[-2:]] == [2, 2]
    await ask(http, "/v1/responses", input="z" * 100)
    assert policy_app.last.speculation.num_speculative_tokens == 2


async def test_terms_by_part_of_the_answer_reach_the_engine(policy_app: PolicyApp) -> None:
    reply = await ask(policy_app.open(), tools=[{"type": "function", "function": {"name": "now"}}])
    assert reply.status_code == 200, reply.text
    call, text = SpeculationChoice(num_speculative_tokens=3), SpeculationChoice("off", "rule_off")
    assert policy_app.last.speculation == SpeculationChoice(inside=(call, text))


async def test_time_and_headers_count(policy_app: PolicyApp) -> None:
    http = policy_app.open()
    http.headers["X-Job"] = "night"
    for time, enabled in (("22:00", True), ("05:59", True), ("06:00", False), ("21:59", False)):
        policy_app.time = datetime.fromisoformat(f"2026-11-20T{time}+00:00")
        await ask(http)
        assert policy_app.last.speculation.enabled == enabled


async def test_rules_by_tenant_and_header_are_traffic_classes_of_their_own(policy_app: PolicyApp) -> None:
    bank, others = policy_app.open("bank"), policy_app.open()
    await ask(bank)
    assert policy_app.last.traffic_class == "chat-completions/standard/free/short/audit"
    assert "traffic_class:chat-completions/standard/free/short" in policy_app.last.kill_scopes
    await ask(others)
    assert policy_app.last.traffic_class == "chat-completions/standard/free/short"
    policy_app.time = datetime.fromisoformat("2026-11-20T23:00+00:00")
    await others.post("/v1/chat/completions", json=CHAT, headers={"x-job": "night"})
    assert policy_app.last.traffic_class == "chat-completions/standard/free/short/night"


async def test_the_rules_that_are_classes_are_bounded(policy_app: PolicyApp) -> None:
    rules = "".join(f"  - {{name: r{i}, match: {{tenant: t{i}}}, mode: on}}\n" for i in range(MAX_CLASS_RULES + 4))
    policy_app.write(f"version: 2\nrules:\n{rules}")
    for tenant, rule in (("t0", "r0"), (f"t{MAX_CLASS_RULES - 1}", f"r{MAX_CLASS_RULES - 1}"), ("t19", OTHER_RULES)):
        await ask(policy_app.open(tenant))
        assert policy_app.last.traffic_class == f"chat-completions/standard/free/short/{rule}"


async def test_domains_and_languages_that_the_policy_lists_are_parts_of_the_class(policy_app: PolicyApp) -> None:
    listed = "traffic_classes: {domain: [medical, legal], language: de}"
    policy_app.write(f"{listed}\nrules: [{{name: law, match: {{domain: legal}}, mode: on}}]\n")
    http, short = policy_app.open(), "chat-completions/standard/free/short"
    for metadata, ends in (
        ({"domain": "medical", "language": "de-AT"}, "default/domain=medical/language=de"),
        ({"domain": "legal", "language": "fr"}, "law/domain=legal/language=other"),
        ({"domain": "my/own name"}, "default/domain=other/language=unknown"),
        ({}, "default/domain=unknown/language=unknown"),
    ):
        await ask(http, metadata=metadata)
        assert policy_app.last.traffic_class == f"{short}/{ends}"
    assert f"traffic_class:{short}/default/domain=unknown" in policy_app.last.kill_scopes


async def test_emit_of_the_rule_unless_the_caller_says_otherwise(policy_app: PolicyApp) -> None:
    http = policy_app.open()

    async def num_chunks(**speculation: str) -> int:
        body: dict[str, Any] = {"response_format": {"type": "json_object"}, "stream": True, "speculation": speculation}
        text = (await ask(http, **body)).text
        return sum('"content"' in line for line in text.splitlines())

    by_rule, by_block = await num_chunks(), await num_chunks(emit="block")
    assert by_rule > by_block


DECLARED = """
rules:
  - {name: urgent, match: {priority: {max: -1}}, mode: on, num_speculative_tokens: 1}
  - {name: forced-call, match: {tool_choice: [required, named]}, mode: on, num_speculative_tokens: 2}
  - {name: legal, match: {domain: legal}, mode: on, num_speculative_tokens: 3}
  - {name: cheap, match: {budget: cheap}, mode: on, num_speculative_tokens: 5}
"""
TOOL = {"type": "function", "function": {"name": "f"}}


async def test_facts_declared_by_requests_and_keys_count(policy_app: PolicyApp) -> None:
    policy_app.write(DECLARED)
    http = policy_app.open()
    by_key = policy_app.open(budget="cheap")

    async def ceiling(http: httpx2.AsyncClient, **body: Any) -> int | None:
        assert (await ask(http, **body)).status_code == 200
        return policy_app.last.speculation.num_speculative_tokens

    assert await ceiling(http, priority=-1) == 1
    assert await ceiling(http, tools=[TOOL], tool_choice="required") == 2
    assert await ceiling(http, tools=[TOOL], tool_choice={"type": "function", "function": {"name": "f"}}) == 2
    assert await ceiling(http, tools=[TOOL]) is None
    assert await ceiling(http, metadata={"domain": "legal"}) == 3
    assert await ceiling(http, metadata={"budget": "cheap"}) == 5
    assert await ceiling(by_key, metadata={"budget": "large"}) == 5, "a request does not change its key's class"
    assert await ceiling(http, priority=1, tools=[TOOL], tool_choice="none", metadata={"domain": "chat"}) is None


async def test_a_stream_says_the_rule_in_its_header_and_last_chunk(policy_app: PolicyApp) -> None:
    reply = await ask(policy_app.open(), stream=True, speculation={"metrics": True})
    assert reply.headers["x-spec-effective"].startswith("mode=off;reason=no_rule;rule=default;policy=1@")
    chunks = [line.removeprefix("data: ") for line in reply.text.splitlines() if line.startswith("data: {")]
    assert json.loads(chunks[-1])["metrics"]["effective"]["policy_rule"] == "default"


@pytest.mark.parametrize(
    ("speculation", "choice"),
    [
        ({"mode": "off"}, SpeculationChoice("off", num_speculative_tokens=2)),
        ({"mode": "always"}, SpeculationChoice("always", num_speculative_tokens=2)),
        ({"max_depth": 1}, SpeculationChoice(num_speculative_tokens=1)),
        ({"max_depth": 9}, SpeculationChoice(num_speculative_tokens=2)),
        ({"proposer": "suffix"}, SpeculationChoice(num_speculative_tokens=2, proposers=("suffix",))),
    ],
)
async def test_an_operators_wish_within_the_rule(
    policy_app: PolicyApp, speculation: Any, choice: SpeculationChoice
) -> None:
    http = policy_app.open(roles=("client", "operator"))
    await ask(http, messages=[{"role": "user", "content": "x" * 100}], speculation=speculation)
    assert policy_app.last.speculation == choice


@pytest.mark.parametrize("route", ["/v1/chat/completions", "/v1/responses"])
async def test_a_pinned_rule_refuses_what_contradicts_it(policy_app: PolicyApp, route: str) -> None:
    http = policy_app.open("bank", roles=ROLES)
    body: dict[str, Any] = {"input": "Hi"} if route == "/v1/responses" else {}
    refused = await ask(http, route, **body, speculation={"mode": "always"})
    error = refused.json()["error"]
    assert (refused.status_code, error["code"], error["param"]) == (403, "policy_conflict", "speculation.mode")
    assert "'audit' pins it to off" in error["message"]
    assert policy_app.engine.requests == []
    assert (await ask(http, route, **body, speculation={"mode": "off"})).status_code == 200


async def test_a_wish_that_needs_a_role_still_needs_it(policy_app: PolicyApp) -> None:
    refused = await ask(policy_app.open(), speculation={"mode": "always"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "insufficient_permissions")


async def test_an_edit_is_taken_without_a_restart_and_a_bad_one_is_not(policy_app: PolicyApp) -> None:
    http = policy_app.open()

    async def rule_and_mode() -> tuple[str, bool]:
        reply = await ask(http, speculation={"metrics": True})
        return reply.json()["metrics"]["effective"]["policy_version"].split("@")[0], policy_app.last.speculation.enabled

    assert await rule_and_mode() == ("1", False)
    policy_app.write("version: 2\ndefault: {mode: on}\n")
    assert await rule_and_mode() == ("1", False)  # not looked at yet
    await policy_app.policies.tick()
    assert await rule_and_mode() == ("2", True)
    for bad in ("mode: maybe", "mode: off, rollout: {}"):
        policy_app.write(f"version: 3\ndefault: {{{bad}}}\n")
        await policy_app.policies.tick()
        assert await rule_and_mode() == ("2", True)
    policy_app.write("version: 4\ndefault: {mode: off}\n")
    await policy_app.policies.tick()
    assert await rule_and_mode() == ("4", False)


LEARNS = "rules: [{name: acme, match: {tenant: acme}, mode: on, proposers: [suffix], learning: {tenants: acme}}]"


async def test_what_was_learnt_reaches_the_engine_and_the_explanation_under_the_policys_version(
    policy_app: PolicyApp,
) -> None:
    policy_app.write(LEARNS)
    http = policy_app.open(roles=ROLES)
    drafting: list[object] = []
    versions = set()
    for change in (None, with_champion, None):
        policy_app.policies.learnt("acme", change)
        reply = await ask(http, speculation={"metrics": True})
        explained = (await http.post("/admin/policy/explain", json={"request": CHAT, "tenant": "acme"})).json()
        versions |= {explained["policy_version"], reply.json()["metrics"]["effective"]["policy_version"]}
        assert explained["in_effect"]["proposers"] == list(policy_app.last.speculation.proposers or ())
        drafting.append(policy_app.last.speculation.proposers)
    assert drafting == [("suffix",), ("learnt_head", "suffix"), ("suffix",)]
    assert versions == {policy_app.policies.version}
    given = {"request": CHAT, "tenant": "acme", "text": LEARNS}
    policy_app.policies.learnt("acme", with_champion)
    by_text = (await http.post("/admin/policy/explain", json=given)).json()
    assert by_text["in_effect"]["proposers"] == ["suffix"], "a text is explained as it is"


async def test_no_rule_sees_secrets(policy_app: PolicyApp) -> None:
    policy_app.write("rules: [{name: spy, match: {headers: {Authorization: {present: true}}}, mode: on}]")
    await ask(policy_app.open())
    assert not policy_app.last.speculation.enabled


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rulez: 1", "did you mean 'rules'"),
        ("default: {mode: on, proposers: [sufix]}", "did you mean 'suffix'"),
        ("default: {mode: shadow, rollout: {}}", "given with mode shadow"),
        ("default: {guardrails: [{name: g, metric: error_rate, margin: 0.1}]}", "given without a rollout"),
    ],
)
def test_a_policy_that_cannot_be_used_stops_the_start(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "policy.yaml").write_text(text)
    config = ServerConfig(port=0, policy=tmp_path / "policy.yaml")
    with pytest.raises(ConfigError, match=said) as caught:
        serve(EngineConfig(), config, lambda c, m: pytest.fail("the model was loaded"))
    assert caught.value.param == "policy"
