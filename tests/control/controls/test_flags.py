"""Flags: flagd's format, read strictly, and asked for requests; providers that fail."""

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from openfeature.evaluation_context import EvaluationContext
from openfeature.flag_evaluation import FlagResolutionDetails
from openfeature.provider.in_memory_provider import InMemoryFlag, InMemoryProvider

from prolepsis.control.controls.flag_file import ENABLED, KILL, FlagFile, evaluation_context, parse_flags
from prolepsis.control.controls.flags import ProviderFlags, provider_of
from prolepsis.core.errors import ConfigError
from prolepsis.core.facts import FlagDecision, RequestFacts, position
from tests.control.controls.flag_files import flag, write

FACTS = RequestFacts(
    route="/v1/completions",
    tenant="acme",
    roles=frozenset({"operator", "client"}),
    prompt_tokens=700,
    headers={"x-app": "ide"},
    time=datetime(2026, 11, 21, 9, tzinfo=UTC),
    targeting_key="r1",
)


def test_facts_are_the_context_and_what_is_unknown_is_not_there() -> None:
    context = evaluation_context(FACTS)
    assert context.targeting_key == "r1"
    said: Any = context.attributes
    assert (said["tenant"], said["prompt_tokens"], said["headers"]) == ("acme", 700, {"x-app": "ide"})
    assert (said["roles"], said["time"]) == (["client", "operator"], "2026-11-21T09:00:00+00:00")
    assert not {"language", "max_tokens", "targeting_key"} & said.keys()


@pytest.mark.parametrize(
    ("rule", "value"),
    [
        ({"==": [{"var": "tenant"}, "acme"]}, False),
        ({"==": [{"var": "headers.x-app"}, "chat"]}, True),
        ({"in": ["operator", {"var": "roles"}]}, False),
        ({">": [{"var": "prompt_tokens"}, 512]}, False),
        ({"starts_with": [{"var": "route"}, "/v1/chat"]}, True),
    ],
)
def test_a_rule_turns_it_off_for_whom_it_names(tmp_path: Path, rule: object, value: bool) -> None:
    said = FlagFile(write(tmp_path / "f.json", flag({"if": [rule, "off"]}))).value.decide(ENABLED, FACTS)
    assert (said.value, said.variant, said.error) == (value, "on" if value else "off", "")
    assert said.reason == ("DEFAULT" if value else "TARGETING_MATCH")
    assert len(said.version) == 12


def test_shares_are_sticky_grow_without_moving_anybody_and_are_apart_from_other_shares(tmp_path: Path) -> None:
    path = tmp_path / "f.json"

    def off(percent: int) -> set[str]:
        flags = FlagFile(write(path, flag({"fractional": [["off", percent], ["on", 100 - percent]]}))).value
        keys = [f"r{i}" for i in range(600)]
        return {key for key in keys if not flags.decide(ENABLED, RequestFacts(targeting_key=key)).value}

    few, again, more = off(10), off(10), off(30)
    assert few == again
    assert few < more
    assert 30 < len(few) < 95
    below = {key for key in more if position("speculation.enabled", key) < 30.0}
    assert 0.15 < len(below) / len(more) < 0.45, "a draw of its own: of either share a part is in the other"


def test_stickiness_may_go_by_any_fact(tmp_path: Path) -> None:
    by_tenant = {"fractional": [{"cat": [{"var": "$flagd.flagKey"}, {"var": "tenant"}]}, ["off", 50], ["on", 50]]}
    flags = FlagFile(write(tmp_path / "f.json", flag(by_tenant))).value
    for tenant in ("ann", "bob", "eve", "kim"):
        facts = [RequestFacts(tenant=tenant, targeting_key=f"r{i}") for i in range(20)]
        assert len({flags.decide(ENABLED, one).value for one in facts}) == 1


def test_defaults_hold_where_a_flag_says_nothing(tmp_path: Path) -> None:
    flags = FlagFile(write(tmp_path / "f.json", flag(state="DISABLED"))).value
    assert flags.decide(ENABLED, FACTS) == FlagDecision(ENABLED, True, None, "DISABLED", flags.version)
    assert flags.decide(KILL) == FlagDecision(KILL, False, None, "ERROR", flags.version, "FLAG_NOT_FOUND")


def test_a_rule_that_fails_leaves_the_default_and_says_so(tmp_path: Path) -> None:
    flags = FlagFile(write(tmp_path / "f.json", flag({"if": [True, "gone"]}, default="off"))).value
    assert flags.decide(ENABLED, FACTS) == FlagDecision(ENABLED, True, None, "ERROR", flags.version, "GENERAL")


class Provider(InMemoryProvider):
    def __init__(self, fault: str) -> None:
        super().__init__({ENABLED: InMemoryFlag("off", {"off": False})})
        self.fault = fault
        self.asked = asyncio.Event()

    async def resolve_boolean_details_async(
        self, flag_key: str, default_value: bool, evaluation_context: EvaluationContext | None = None
    ) -> FlagResolutionDetails[bool]:
        if self.fault == "raises":
            raise RuntimeError("no connection")
        if self.fault == "late":
            self.asked.set()
            await asyncio.sleep(60)
        return self.resolve_boolean_details(flag_key, default_value, evaluation_context)


async def ready(provider: InMemoryProvider, timeout_s: float = 0.1) -> ProviderFlags:
    flags = ProviderFlags(provider, timeout_s)
    while (await flags.decide(ENABLED, FACTS)).error == "PROVIDER_NOT_READY":  # noqa: ASYNC110  # it starts in a thread
        await asyncio.sleep(0.001)
    return flags


async def test_another_provider_answers() -> None:
    flags = await ready(Provider(""))
    said = await flags.decide(ENABLED, FACTS)
    assert (said.value, said.variant, said.version, said.error) == (False, "off", "", "")
    flags.close()


@pytest.mark.parametrize(("fault", "error"), [("raises", "GENERAL"), ("late", "TIMEOUT")])
async def test_a_provider_that_fails_or_is_late_leaves_the_default(fault: str, error: str) -> None:
    flags = await ready(Provider(fault), 0.02)
    assert (await flags.decide(ENABLED, FACTS)) == FlagDecision(ENABLED, True, None, "ERROR", error=error)
    flags.close()


async def test_a_waiting_evaluation_may_be_cancelled() -> None:
    provider = Provider("")
    flags = await ready(provider, 60.0)
    provider.fault = "late"
    asking = asyncio.ensure_future(flags.decide(ENABLED, FACTS))
    await provider.asked.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    flags.close()


async def test_two_servers_have_flags_of_their_own() -> None:
    on = await ready(InMemoryProvider({ENABLED: InMemoryFlag("on", {"on": True})}))
    off = await ready(Provider(""))
    assert (await on.decide(ENABLED, FACTS)).value
    on.close()
    assert not (await off.decide(ENABLED, FACTS)).value
    off.close()


def test_a_bad_edit_leaves_the_last_good_flags(tmp_path: Path) -> None:
    file = FlagFile(write(tmp_path / "f.json", flag()))
    write(tmp_path / "f.json", flag(default="off"))
    assert file.poll().changed
    assert file.value.decide(ENABLED).value is False
    write(tmp_path / "f.json", flag(default="nothing"))
    assert "defaultVariant is 'nothing'" in str(file.poll().refused)
    assert file.poll().refused is None
    assert file.value.decide(ENABLED).value is False


def test_a_provider_is_made_by_its_name() -> None:
    made = provider_of("openfeature.provider.no_op_provider:NoOpProvider")
    assert made.get_metadata().name
    for wrong in ("openfeature.provider:Gone", "gone:Gone", "no colon", "os:getcwd.x"):
        with pytest.raises(ConfigError, match="flag_provider"):
            provider_of(wrong)


def test_a_header_carries_no_variant_that_could_break_it() -> None:
    said = FlagDecision("k", value=False, variant="a;b\r\nx", reason="STATIC")
    assert said.shown == "k:false:STATIC"
    assert FlagDecision("k", value=False, variant="v-1", reason="STATIC").shown == "k:v-1:STATIC"


def text(**flags: object) -> str:
    return json.dumps({"flags": {"speculation.enabled": flag(), **flags}})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("{", "neither JSON nor YAML"),
        ("[1]", "the file is [1]; allowed: a mapping"),
        ('{"flag": {}}', "flag is unknown; did you mean 'flags'?"),
        ('{"flags": {}, "flagz": {}}', "flagz is unknown; did you mean 'flags'?"),
        (text(x=flag(state="on")), "flags.x.state is 'on'; allowed: ENABLED, DISABLED"),
        (text(x=flag(default="maybe")), "flags.x: defaultVariant is 'maybe'; allowed: on, off"),
        (text(x=flag(surprise=1)), "flags.x.surprise is unknown; did you mean"),
        (text(x={**flag(), "variants": {}}), "flags.x.variants is {}; allowed: one or more"),
        (text(x={**flag(), "variants": {"on": True, "off": "no"}}), "flags.x: variants are boolean, string"),
        (
            text(**{"speculation.kill": {**flag(), "variants": {"on": "y", "off": "n"}}}),
            "allowed for this flag: boolean",
        ),
        (text(x=flag({"iff": [True, "on"]})), "flags.x: targeting has the operator 'iff'; allowed: !, "),
        (text(x=flag({"if": [{"sum": [1, 2]}, "on"]})), "has the operator 'sum'"),
        (text(x=flag({"log": "tenant"})), "has the operator 'log'"),
        (text(x=flag({"if": [True, "on"], "or": []})), "has a mapping of 2 keys"),
        ('{"flags": {"a": {}, "a": {}}}', "key 'a' is given twice"),
    ],
)
def test_what_is_wrong_is_named(given: str, said: str) -> None:
    with pytest.raises(ConfigError) as wrong:
        parse_flags(given, "flags.json")
    assert str(wrong.value).startswith("flags flags.json")
    assert said in str(wrong.value)
    assert wrong.value.param == "flags"


def test_json_and_yaml_say_the_same_and_the_version_is_of_the_content() -> None:
    yaml = """
    metadata: {version: v7}
    $evaluators:
      staff: {in: [{var: tenant}, [acme, bob]]}
    flags:
      speculation.enabled:   # variants may be called on and off here
        state: ENABLED
        variants: {on: true, off: false}
        defaultVariant: off
        targeting: {if: [{$ref: staff}, on]}
    """
    as_yaml = parse_flags(yaml, "a")
    said = {
        "flags": {"speculation.enabled": flag({"if": [{"$ref": "staff"}, "on"]}, default="off")},
        "$evaluators": {"staff": {"in": [{"var": "tenant"}, ["acme", "bob"]]}},
        "metadata": {"version": "v7"},
    }
    as_json = parse_flags(json.dumps(said), "b")
    assert as_yaml.version == as_json.version
    assert as_yaml.version.startswith("v7@")
    assert as_yaml.keys == {"speculation.enabled"}
    other = parse_flags(text(), "c")
    assert other.version != as_yaml.version.removeprefix("v7@")
