"""Flags while serving: they turn speculation off for a request, and every reply says what they said."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from openfeature.provider import FeatureProvider
from openfeature.provider.in_memory_provider import InMemoryProvider

from prolepsis.control.controls.flag_file import FlagFile
from prolepsis.core.config import EngineConfig, LimitTerms, ServerConfig
from prolepsis.core.errors import ConfigError
from prolepsis.core.requests import SpeculationChoice
from prolepsis.server.openai.replies import MetricsReply
from prolepsis.server.run import serve
from tests.control.controls.flag_files import flag, write
from tests.world.site import Site

CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
OFF_FOR_TEXT = {"if": [{"==": [{"var": "route"}, "/v1/completions"]}, "off"]}


class FlagApp(Site):
    def __init__(self, source: FlagFile | FeatureProvider | None, folder: Path, policy: str | None = None) -> None:
        config = ServerConfig(controls_file=folder / "controls.json", limits=LimitTerms(start_drafts=0))
        super().__init__(config=config, folder=folder, policy=policy, flags=source)

    async def ask(self, route: str = "/v1/chat/completions", **body: Any) -> httpx2.Response:
        return await self.post(route, **(CHAT if route == "/v1/chat/completions" else {"model": "tiny"}) | body)

    @property
    def choice(self) -> SpeculationChoice:
        return self.engine.requests[-1].speculation  # type: ignore[no-any-return]


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., FlagApp]:
    def made(enabled: object = None, kill: object = None, policy: str | None = None) -> FlagApp:
        return FlagApp(FlagFile(write(tmp_path / "flags.json", enabled, kill)), tmp_path, policy)

    return made


async def test_a_flag_turns_it_off_for_whom_its_rule_names_and_the_reply_says_so(make: Callable[..., FlagApp]) -> None:
    flag_app = make(flag(OFF_FOR_TEXT))
    reply = await flag_app.ask(speculation={"metrics": True})
    assert flag_app.choice.enabled
    said = reply.json()["metrics"]["effective"]["flag"]
    assert (said["key"], said["value"], said["variant"], said["reason"]) == (
        "speculation.enabled",
        True,
        "on",
        "DEFAULT",
    )
    assert said["version"]
    MetricsReply.model_validate(reply.json()["metrics"])
    assert reply.headers["x-spec-effective"].endswith(";flag=speculation.enabled:on:DEFAULT")

    reply = await flag_app.ask("/v1/completions", prompt="Hi", stream=True, speculation={"metrics": True})
    assert flag_app.choice == SpeculationChoice("off", "flag_off")
    off = "mode=off;reason=flag_off;flag=speculation.enabled:off:TARGETING_MATCH"
    assert reply.headers["x-spec-effective"] == off
    chunks = [line.removeprefix("data: ") for line in reply.text.splitlines() if line.startswith("data: {")]
    assert json.loads(chunks[-1])["metrics"]["effective"]["flag"]["variant"] == "off"
    labels = {"flag": "speculation.enabled", "variant": "off", "reason": "TARGETING_MATCH", "error": ""}
    assert flag_app.sample("flag_evaluations_total", **labels) == 1.0


async def test_off_by_flag_beats_caller_and_policy_and_on_forces_nothing(make: Callable[..., FlagApp]) -> None:
    flag_app = make(flag(default="off"), policy="default: {mode: on, pinned: true}")
    await flag_app.ask()
    assert flag_app.choice == SpeculationChoice("off", "flag_off")
    flag_app = make(flag(), policy="default: {mode: off}")
    reply = await flag_app.ask(stream=True)
    assert flag_app.choice == SpeculationChoice("off", "no_rule")
    assert reply.headers["x-spec-effective"].startswith("mode=off;reason=no_rule;rule=default;policy=")
    assert reply.headers["x-spec-effective"].endswith(";flag=speculation.enabled:on:STATIC")
    await flag_app.ask(speculation={"mode": "off"})
    assert flag_app.choice == SpeculationChoice("off")


async def test_an_edit_is_taken_without_a_restart_and_a_bad_one_is_not(
    make: Callable[..., FlagApp], tmp_path: Path
) -> None:
    flag_app = make(flag())
    for enabled, expected in ((flag(default="off"), False), (flag(default="maybe"), False), (flag(), True)):
        write(tmp_path / "flags.json", enabled)
        await flag_app.tick()
        await flag_app.ask()
        assert flag_app.choice.enabled == expected
    assert flag_app.sample("flag_file_refused_total") == 1.0


async def test_the_kill_flag_stops_all_and_goes_on(make: Callable[..., FlagApp], tmp_path: Path) -> None:
    flag_app = make(kill=flag(default="on"))
    await flag_app.tick()
    assert [(plan.num_speculative_tokens, plan.reason) for plan in flag_app.engine.plans] == [(0, "killed")]
    assert (await flag_app.http.get("/health")).json()["killed_by"] == ["flag"]
    write(tmp_path / "flags.json", kill=flag(default="on", state="DISABLED"))
    await flag_app.tick()
    assert flag_app.engine.plans[-1].num_speculative_tokens > 0
    assert (await flag_app.http.get("/health")).json()["killed_by"] == []


async def test_a_kill_flag_that_cannot_be_had_changes_nothing(make: Callable[..., FlagApp], tmp_path: Path) -> None:
    flag_app = make(kill=flag(default="on"))
    await flag_app.tick()
    write(tmp_path / "flags.json", enabled=flag())  # the flag is gone: FLAG_NOT_FOUND
    await flag_app.tick()
    assert len(flag_app.engine.plans) == 1
    assert (await flag_app.http.get("/admin/kill")).json()["on"]


async def test_a_provider_that_fails_costs_no_request(tmp_path: Path) -> None:
    class Broken(InMemoryProvider):
        async def resolve_boolean_details_async(self, *_: object, **__: object) -> Any:
            raise RuntimeError("no connection")

    flag_app = FlagApp(Broken({}), tmp_path)
    reply = await flag_app.ask(speculation={"metrics": True})
    said = reply.json()["metrics"]["effective"]["flag"]
    assert (said["value"], said["reason"], said["error"]) == (True, "ERROR", "GENERAL")
    assert flag_app.choice.enabled


BY_FLAG = """
rules:
  - {name: new, match: {route: /v1/completions, flag: [new-drafts, staff]}, mode: on, num_speculative_tokens: 3}
"""
BY_HEADER = {"cat": [{"var": "$flagd.flagKey"}, {"var": "headers.x-tenant"}]}
HALF_OF_TENANTS = {"fractional": [BY_HEADER, ["on", 50], ["off", 50]]}


async def test_a_rule_holds_where_a_flag_says_so_and_the_share_sticks(tmp_path: Path) -> None:
    also = {"new-drafts": flag(HALF_OF_TENANTS, default="off"), "staff": flag(default="off")}
    flag_app = FlagApp(FlagFile(write(tmp_path / "flags.json", flag(), also=also)), tmp_path, BY_FLAG)
    rules: dict[str, set[str]] = {}
    for _ in range(2):
        for i in range(20):
            flag_app.http.headers["X-Tenant"] = tenant = f"tenant-{i}"
            reply = await flag_app.ask("/v1/completions", prompt="Hi", speculation={"metrics": True})
            effective = reply.json()["metrics"]["effective"]
            MetricsReply.model_validate(reply.json()["metrics"])
            rules.setdefault(tenant, set()).add(effective["policy_rule"])
            new, staff = effective["policy_flags"]
            assert (new["key"], new["reason"]) == ("new-drafts", "TARGETING_MATCH")
            assert new["value"] == (effective["policy_rule"] == "new")
            assert (staff["key"], staff["value"], effective["flag"]["key"]) == ("staff", False, "speculation.enabled")
            shown = f";flag=new-drafts:{new['variant']}:TARGETING_MATCH;flag=staff:off:STATIC;flag=speculation.enabled"
            assert shown in reply.headers["x-spec-effective"]
    assert all(len(found) == 1 for found in rules.values()), "each tenant keeps its own"
    assert 5 <= sum(found == {"new"} for found in rules.values()) <= 15
    counted = {"flag": "staff", "variant": "off", "reason": "STATIC", "error": ""}
    assert flag_app.sample("flag_evaluations_total", **counted) == 40.0


async def test_a_missing_flag_is_false_and_reported(tmp_path: Path) -> None:
    flag_app = FlagApp(FlagFile(write(tmp_path / "flags.json", flag())), tmp_path, BY_FLAG)
    reply = await flag_app.ask("/v1/completions", prompt="Hi", speculation={"metrics": True})
    effective = reply.json()["metrics"]["effective"]
    assert (effective["policy_rule"], effective["policy_flags"][0]["error"]) == ("default", "FLAG_NOT_FOUND")


async def test_without_a_provider_no_rule_with_a_flag_holds(tmp_path: Path) -> None:
    flag_app = FlagApp(None, tmp_path, BY_FLAG)
    reply = await flag_app.ask("/v1/completions", prompt="Hi", speculation={"metrics": True})
    effective = reply.json()["metrics"]["effective"]
    assert effective["policy_rule"] == "default"
    assert "policy_flags" not in effective


async def test_a_flag_that_nothing_reads_is_reported(tmp_path: Path) -> None:
    flag_app = FlagApp(None, tmp_path, BY_FLAG)
    replies = [
        await flag_app.http.put("/admin/flags", json={"flag": name, "value": False, "reason": "drill"})
        for name in ("speculation.enabled", "staff", "specualtion.enabled")
    ]
    read = "speculation.enabled, speculation.kill, new-drafts, staff"
    warning = "no rule of the policy names the flag 'specualtion.enabled', so it changes nothing"
    assert [reply.json()["warnings"] for reply in replies] == [[], [], [f"{warning}; flags that are read: {read}"]]
    assert (await flag_app.http.get("/admin/flags")).json()["warnings"] == replies[-1].json()["warnings"]


async def test_without_flags_nothing_is_said_of_them(tmp_path: Path) -> None:
    reply = await FlagApp(None, tmp_path).ask(speculation={"metrics": True})
    assert "flag" not in reply.json()["metrics"]["effective"]
    assert "flag" not in reply.headers["x-spec-effective"]


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"flags": "gone.json"}, "cannot be read"),
        ({"flag_provider": "gone:Gone"}, "cannot be used"),
        ({"flags": "a", "flag_provider": "b"}, "both given"),
    ],
)
def test_flags_that_cannot_be_used_stop_the_start(tmp_path: Path, config: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        serve(EngineConfig(), ServerConfig(port=0, **config), lambda c, m: pytest.fail("the model was loaded"))
