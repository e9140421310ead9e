"""Every check fails on a site made to fail it, passes on a good one, and says why where it cannot be told."""

import platform
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from prolepsis.control.controls.file import ControlsFile
from prolepsis.control.controls.kill_switch import KILL
from prolepsis.control.store.controls import Control, control_key
from prolepsis.core.config import EngineConfig, ServerConfig
from prolepsis.core.kill_scope import EVERYTHING
from prolepsis.engine.native import choice
from prolepsis.engine.native.processor import instruction_sets, processor_flags
from prolepsis.lab.doctor.checks import BY_NAME, TESTS, Check, all_checks, kernels
from prolepsis.server.cli.main import COMMANDS
from prolepsis.server.front.key_file import KeyFile, new_key
from tests.lab.doctor.site import Site, age, environment, good_site, replica, rule
from tests.paths import ROOT

CHECKS = {check.id: check for check in all_checks()}
PAGE = (ROOT / "docs" / "how-to" / "doctor.md").read_text()
Change = Callable[[Site], object]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.chdir(tmp_path)
    for name, value in environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    with good_site(tmp_path) as made:
        yield made


def setting(name: str, value: object) -> Change:
    def change(site: Site) -> None:
        of = next(of for of in (site.engine, site.settings, site.settings["limits"]) if name in of)
        of[name] = value

    return change


def reply(path: str, **changes: object) -> Change:
    return lambda site: site.replies[path].update(changes)


def machine(name: str, value: object) -> Change:
    return lambda site: site.machine.update({name: value})


def old_act(action: str) -> Change:
    return lambda site: site.days_ago.update({action: 91.0})


def no_act(action: str) -> Change:
    return lambda site: site.days_ago.pop(action)


def old_file(name: str, days: float = 91.0) -> Change:
    return lambda site: age(site.folder / name, days)


def no_file(name: str) -> Change:
    return lambda site: (site.folder / name).unlink()


def add_key(*roles: Any) -> Change:
    return lambda site: KeyFile(site.folder / "keys.json").add(new_key("acme", roles=roles)[0])


def policy(**changes: object) -> Change:
    return reply("/admin/policy", content={"default": {"mode": "off"}, "rules": [rule(), rule(name="b", **changes)]})


def alerts_without(name: str) -> Change:
    """Take a field of all loaded alerts away; the first alert itself if the name is empty."""

    def change(site: Site) -> None:
        rules = site.replies["/prometheus/api/v1/rules"]["data"]["groups"][0]["rules"]
        if not name:
            del rules[0]
        for one in rules if name else ():
            one[name] = {}

    return change


def only_here(change: Change) -> Change:
    def both(site: Site) -> None:
        no_server(site)
        change(site)

    return both


def settings_file(text: str) -> Change:
    return only_here(lambda site: (site.folder / "prolepsis.yaml").write_text(text))


def no_server(site: Site) -> None:
    site.names_server = False


def replicas(**changes: object) -> Change:
    return reply("/admin/replicas", replicas=[replica(here=True), replica(**changes)])


HEAD = {"name": "mine", "version": 2, "misfit": "trained for another model", "slot": "learnt_head"}
KILLED = Control("2026-01-01T00:00:00+00:00", 1.0)
STORE = {"ok": False, "num_queued": 9, "written": {}, "dropped": {}}
FAILING: Mapping[str, tuple[Change, ...]] = {
    "settings": tuple(map(settings_file, ("nonsense: 1", "port: many", "policy: away.yaml", "prices: away.yaml"))),
    "speculation": (
        setting("num_speculative_tokens", 0),
        lambda site: site.engine.update(proposers=[], draft_head="none"),
        reply("/admin/policy", content={"default": {"mode": "off"}, "rules": [rule(mode="off")]}),
    ),
    "native-kernels": (machine("kernels", (False, "no C++ compiler")),),
    "cost-curve": (old_file("cache/profiles/1.json"), no_file("cache/profiles/1.json")),
    "self-check": (old_file("cache/self-checks/1.json"), no_file("cache/self-checks/1.json")),
    "memory": (machine("free_memory", 2**30 - 1),),
    "disk": (machine("free_disk", 2**30),),
    "open-files": (machine("open_files", 1024),),
    "key-roles": (add_key("client", "admin"),),
    "backup": (old_file("backup.sqlite", 1.6), no_file("backup.sqlite")),
    "breaker": (setting("breaker", "off"), setting("breaker", "metrics_only")),
    "replays": (setting("replay_sample", 0.0),),
    "prefix-cache": (setting("prefix_cache", value=False),),
    "queue-limits": (
        setting("max_queued", 0),
        setting("max_queued_per_tenant", 0),
        setting("request_timeout_s", None),
        setting("shed_after_s", []),
    ),
    "quotas": (setting("tokens_per_minute", {}),),
    "retention": (setting("store_retention_days", 0.0), setting("audit_text_days", 0.0)),
    "redaction": (setting("audit_content", "tokens"),),
    "anchors": (setting("audit_anchor", ["auto"]), setting("audit_anchor", ["none"])),
    "drain": (setting("shutdown_s", 0.0),),
    "recovery": (
        setting("stuck_after_s", 0.0),
        setting("propose_limit_ms", 0.0),
        setting("engine_restarts", 0),
    ),
    "dashboards": (setting("grafana_url", "none"),),
    "alertmanager": (setting("alertmanager", "none"),),
    "kill-tried": (old_act("kill.on"), no_act("kill.on")),
    "drill": (old_act("drill.run"), no_act("drill.run")),
    "exact-run": (old_act("exact.passed"), no_act("exact.passed")),
    "rehearsal": (old_act("rehearsal.checked"), no_act("rehearsal.checked")),
    "ready": (reply("/health/ready", ready=False, detail="shutting down"),),
    "deep": (reply("/health/deep", healthy=False, detail="not 8 tokens within 10 s"),),
    "keys": (lambda site: setattr(site, "asks_for_keys", False),),
    "tls": (setting("host", "10.0.0.7"),),
    "store": (reply("/health/ready", store=None), reply("/health/ready", store=STORE)),
    "exactness": (reply("/health/ready", exactness="normal", exactness_reason="self-check: logits differ"),),
    "replays-match": (reply("/admin/health", correctness={"match_rate": 0.5, "outcomes": {"structural": 1}}),),
    "head-fits": (reply("/admin/heads", heads=[HEAD]),),
    "chat-template": (reply("/tokenizer_info", chat_template=None),),
    "kill-off": (
        reply("/admin/kill", killed=["everything"]),
        only_here(lambda site: ControlsFile(site.folder / "controls.json").set(control_key(KILL, EVERYTHING), KILLED)),
    ),
    "guardrails": (policy(guardrails=[]), policy(rollout=None), policy(rollout={"holdout": 0.0})),
    "clock": (lambda site: setattr(site, "ahead_s", 6.0), lambda site: setattr(site, "ahead_s", -6.0)),
    "replicas": (replicas(version="0.1"), replicas(exact_group="b2")),
    "objectives": (alerts_without("labels"),),
    "alerts-loaded": (alerts_without(""),),
    "runbooks": (lambda site: site.replies.update({"/runbooks/latency": 404}), alerts_without("annotations")),
}
"""By check: changes of a good site, each of which makes it fail."""


def no_prometheus(site: Site) -> None:
    site.names_prometheus = False


def refused(site: Site) -> None:
    site.replies["/admin/audit"] = 403


def readable_by_all(site: Site) -> None:
    (site.folder / "keys.json").chmod(0o644)


UNKNOWN: Mapping[str, Change] = {
    "key-roles": readable_by_all,
    "backup": lambda site: setattr(site, "backup", None),
    **{name: lambda site: site.machine.clear() for name in ("native-kernels", "memory", "disk", "open-files")},
    **dict.fromkeys(("objectives", "alerts-loaded", "runbooks"), no_prometheus),
    **dict.fromkeys(("kill-tried", "drill", "exact-run", "rehearsal"), refused),
    **dict.fromkeys(("settings", "speculation", "tls"), no_act("server.started")),
    "kill-off": lambda site: site.replies.update({"/admin/kill": 403}),
    "replays-match": reply("/admin/health", correctness={"match_rate": None}),
    "guardrails": reply("/admin/policy", content=None),
    "clock": no_server,
}
"""By check, where it is not what all checks of a kind have in common."""
NEVER_UNKNOWN = {"cost-curve", "self-check"}
"""A folder of this machine in which there is nothing says enough."""


def found(check: Check, site: Site) -> dict[str, str]:
    return check.examined(site.facts())


def test_every_check_has_a_test_and_a_failing_example() -> None:
    by_name = {check.id for check in CHECKS.values() if check.looks_at.partition(": ")[0] in BY_NAME}
    assert by_name | TESTS.keys() == CHECKS.keys() == FAILING.keys()
    assert not by_name & TESTS.keys()
    assert len(CHECKS) == len(all_checks()) >= 38
    assert {check.level for check in CHECKS.values()} == {"must", "should", "could"}


@pytest.mark.parametrize("name", CHECKS)
def test_it_passes_on_a_good_site(site: Site, name: str) -> None:
    result = found(CHECKS[name], site)
    assert (result["state"], bool(result["finding"])) == ("pass", True), result["finding"]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        pytest.param(name, change, id=f"{name}-{number}")
        for name, changes in FAILING.items()
        for number, change in enumerate(changes)
    ],
)
def test_it_fails_on_a_site_made_to_fail_it(site: Site, name: str, change: Change) -> None:
    change(site)
    result = found(CHECKS[name], site)
    assert (result["state"], bool(result["finding"])) == ("fail", True), result["finding"]


@pytest.mark.parametrize("name", sorted(CHECKS.keys() - NEVER_UNKNOWN))
def test_it_is_unknown_with_the_reason_where_facts_lack(site: Site, name: str) -> None:
    kind = CHECKS[name].looks_at.partition(": ")[0]
    usual = {"settings": no_act("server.started"), "server": no_server}
    (UNKNOWN.get(name) or usual[kind])(site)
    result = found(CHECKS[name], site)
    assert (result["state"], bool(result["finding"])) == ("unknown", True), result


@pytest.mark.parametrize(
    ("name", "change", "finding"),
    [
        ("settings", settings_file("nonsense: 1"), "prolepsis.yaml sets 'nonsense', which is unknown"),
        ("speculation", setting("num_speculative_tokens", 0), "num_speculative_tokens: 0"),
        ("queue-limits", setting("request_timeout_s", None), "request_timeout_s is not set"),
        ("breaker", setting("breaker", "off"), "breaker: off"),
        ("objectives", alerts_without("labels"), "by the label sloth_slo"),
        ("key-roles", no_file("keys.json"), "there are no keys in"),
    ],
)
def test_a_finding_names_its_cause(site: Site, name: str, change: Change, finding: str) -> None:
    change(site)
    assert found(CHECKS[name], site)["finding"].startswith(finding)


def test_what_needs_settings_that_are_refused_is_unknown(site: Site) -> None:
    settings_file("nonsense: 1")(site)
    needing = {name for name, check in CHECKS.items() if check.looks_at.startswith("settings")} | {"key-roles"}
    states = {name: found(CHECKS[name], site)["state"] for name in needing}
    assert states == dict.fromkeys(needing, "unknown") | {"settings": "fail"}


def test_a_server_that_is_down_is_no_pass(site: Site) -> None:
    site.url = "http://127.0.0.1:9"
    for check in CHECKS.values():
        if check.looks_at.startswith(("server", "settings", "act", "monitoring")):
            result = found(check, site)
            assert (result["id"], result["state"]) == (check.id, "unknown")


def test_without_a_server_the_settings_are_those_here(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.names_server = False
    assert found(CHECKS["breaker"], site)["state"] == "pass"
    monkeypatch.setenv("PROLEPSIS_BREAKER", "off")
    assert found(CHECKS["breaker"], site)["finding"] == "breaker: off"


def test_the_settings_of_another_server_of_the_store_say_nothing(site: Site) -> None:
    site.settings["port"] = 9000
    assert "no start of this server" in found(CHECKS["breaker"], site)["finding"]


def test_a_proxy_in_front_of_a_server_may_have_the_certificate(site: Site) -> None:
    site.settings["host"] = "0.0.0.0"
    facts = site.facts()
    assert not TESTS["tls"](facts)[0]
    facts.url = "https://chat.example.org"  # the settings have been read
    assert TESTS["tls"](facts)[0]


def test_a_reply_of_another_version_costs_only_its_checks(site: Site) -> None:
    site.replies["/admin/heads"] = {"unexpected": 1}
    states = {name: found(check, site)["state"] for name, check in CHECKS.items()}
    assert {name for name, state in states.items() if state != "pass"} == {"head-fits"}


def test_the_checklists_name_checks_and_leave_none_out() -> None:
    lists = PAGE.partition("## Checklists")[2].partition("## All checks")[0]
    named = {
        name for row in re.findall(r"^\|.*\| (`.*`) \|$", lists, re.MULTILINE) for name in re.findall("`(.+?)`", row)
    }
    assert named == CHECKS.keys()


def test_what_mends_it_exists() -> None:
    """Pages and their parts are there, and commands are understood."""
    for check in CHECKS.values():
        for page, part in re.findall(r"(docs/[\w/-]+\.md)(?:#([\w-]+))?", check.fix):
            heads = re.findall(r"^#+ (.+)$", (ROOT / page).read_text(), re.MULTILINE)
            assert not part or part in {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}, check
        for name in re.findall(r"`prolepsis ([\w-]+)", check.fix):
            assert name in COMMANDS, check
        for name in re.findall(r"set `(\w+)", check.fix):
            assert name in ServerConfig.model_fields.keys() | EngineConfig.model_fields.keys(), check


def test_kernels_are_named_or_the_reason_why_none_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PROLEPSIS_NATIVE", raising=False)
    if names := instruction_sets(processor_flags()):
        assert any(name in kernels()[1] for name in names)
    monkeypatch.setattr(choice, "variants", lambda: ())
    assert kernels() == (False, f"there are no kernels for {platform.machine()}")
    monkeypatch.setenv("PROLEPSIS_NATIVE", "gcc")
    assert kernels() == (False, "PROLEPSIS_NATIVE is 'gcc'; allowed: build, which compiles the kernels here")
