"""Every act of control has an entry in the audit log: a list of all acts, by whatever way they come."""

import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from prolepsis.control.audit import chain
from prolepsis.control.audit.entry import AuditEntry
from prolepsis.control.audit.verify import verify
from prolepsis.control.controls.file import ControlsFile
from prolepsis.control.controls.flag_file import FlagFile
from prolepsis.control.cost.prices import PriceFile
from prolepsis.control.health.feature import HealthFeature
from prolepsis.control.policy.source import PolicyFile
from prolepsis.control.store.controls import Control
from prolepsis.control.store.lineage import LineageTable
from prolepsis.control.store.signing import usable_keys
from prolepsis.control.store.store import Store, open_store
from prolepsis.control.web.routes import Route
from prolepsis.core.config import ServerConfig
from prolepsis.core.learning import HeadLineage
from prolepsis.core.stats import TrafficClassCounts
from prolepsis.core.telemetry.metrics import Metrics
from prolepsis.core.terminal.output import UNPROVEN
from prolepsis.server.cli.main import COMMANDS, app, load_command
from prolepsis.server.front.key_file import KeyFile, new_key
from prolepsis.server.front.keys import Keys
from prolepsis.server.known import KNOWN
from tests.control.controls.flag_files import flag, write
from tests.control.rollout.alertmanager import fake_alertmanager
from tests.control.store.databases import migrated_setting
from tests.server.fakes import FakeEngine
from tests.world.site import Site

TRAFFIC_CLASS = "chat-completions/standard/free/short"
ON, OFF = "version: 1\ndefault: {mode: on}\n", "version: 2\ndefault: {mode: off}\n"
ROLLED_OUT = "version: 3\ndefault: {mode: on, rollout: {stages: [25, 50]}}\n"
LEARNS = """version: 4
rules:
  - {name: code, match: {tenant: acme}, mode: on, learning: {tenants: [acme], run: elsewhere}}
"""
PRICES = "version: 1\ncurrency: EUR\nprices:\n  - {name: cpu, per_device_hour: 1.0}\n"


class ControlledSite(Site):
    """A server with everything that can be controlled, its store and its files."""

    def __init__(self, folder: Path, store: Store, alertmanager: str, *, policy_file: bool) -> None:
        self.folder, self.store = folder, store
        self.keys = KeyFile(folder / "keys.json")
        (folder / "policy.yaml").write_text(ON)
        (folder / "prices.yaml").write_text(PRICES)
        super().__init__(
            FakeEngine(counts=(TrafficClassCounts("suffix", TRAFFIC_CLASS, num_judged=100, num_right=60),)),
            ServerConfig(
                controls_file=folder / "controls.json",
                audit_sample=1.0,
                audit_content="tokens",
                alertmanager=alertmanager,
                allow_drills=True,
            ),
            keys=Keys(self.keys),
            policy=PolicyFile(folder / "policy.yaml", KNOWN) if policy_file else None,
            flags=FlagFile(write(folder / "flags.json", flag())),
            prices=PriceFile(folder / "prices.yaml"),
            store=store,
        )

    def entries(self) -> list[AuditEntry]:
        assert self.store.writer.flush(20.0)
        with self.store.database.read() as connection:
            entries = list(chain.entries(connection))
        assert verify(entries).faults == ()
        return entries

    async def ask(self, method: str, path: str, body: Mapping[str, object] | None = None) -> Any:
        reply = await self.http.request(method, path, json=body)
        assert reply.status_code == 200, reply.text
        return reply.json()

    async def put(self, path: str, **body: object) -> None:
        await self.ask("PUT", path, body)

    async def apply(self, text: str) -> None:
        await self.put("/admin/policy", text=text, expect=(await self.ask("GET", "/admin/policy"))["version"] or 0)

    async def steer(self, command: str) -> None:
        [rollout] = (await self.ask("GET", "/admin/rollouts"))["rollouts"]
        await self.post(f"/admin/rollouts/{rollout['id']}/{command}", force=command == "promote")


Step = Callable[[ControlledSite], Awaitable[object]]


@asynccontextmanager
async def site(folder: Path, *, policy_file: bool = False) -> AsyncIterator[ControlledSite]:
    config = ServerConfig(store=migrated_setting(folder))
    with closing(open_store(config.store, Metrics().registry)) as store, fake_alertmanager() as alertmanager:
        made = ControlledSite(folder, store, alertmanager.url, policy_file=policy_file)
        await made.tick()
        yield made


@dataclass(frozen=True)
class Act:
    """What is done, after `before`, and the action of the entry that says so."""

    action: str
    act: Step
    before: tuple[Step, ...] = ()
    policy_file: bool = False


async def settled(site: ControlledSite) -> None:
    await site.tick()


async def breaker(site: ControlledSite) -> None:
    await site.put("/admin/health", proposer="suffix", traffic_class=TRAFFIC_CLASS, state="forced_open")


async def more_judged(site: ControlledSite) -> None:
    site.engine.counts = (TrafficClassCounts("suffix", TRAFFIC_CLASS, num_judged=300, num_right=160),)
    await site.tick()


async def drift_poll(site: ControlledSite) -> None:
    await site.feature(HealthFeature).tick()


async def served(site: ControlledSite) -> None:
    await site.post("/v1/completions", model="tiny", prompt="Say hi", max_tokens=40)
    assert site.entries()[-1].action == "request.served"


async def bundled(site: ControlledSite) -> None:
    await site.post(f"/admin/requests/{site.entries()[-1].seq}/bundle", form="whole", sealed_for=f"key age1{'q' * 58}")


async def corpus_added(site: ControlledSite) -> None:
    form, files = {"purpose": "corpus"}, {"file": ("a.py", b"text")}
    assert (await site.http.post("/v1/files", data=form, files=files)).status_code == 200


async def corpus_removed(site: ControlledSite) -> None:
    [corpus] = await site.ask("GET", "/admin/corpora")
    await site.ask("DELETE", f"/admin/corpora/{corpus['id']}")


async def recording_started(site: ControlledSite) -> None:
    await site.post("/admin/recording", seconds=60.0)


async def recording_downloaded(site: ControlledSite) -> None:
    assert (await site.http.get("/admin/recording/file")).status_code == 200


async def flag_set(site: ControlledSite) -> None:
    await site.put("/admin/flags", flag="speculation.enabled", value=False, reason="drill")


async def replayed(site: ControlledSite) -> None:
    await site.post(f"/admin/audit/{site.entries()[-1].seq}/replay")


def applied(text: str) -> Step:
    return lambda site: site.apply(text)


def steered(command: str) -> Step:
    return lambda site: site.steer(command)


def killed(*, on: bool) -> Step:
    return lambda site: site.put("/admin/kill", on=on, reason="drill")


def drilled(**body: object) -> Step:
    return lambda site: site.put("/admin/drills", drill="burst", drain=True, **body)


def rollback() -> Step:
    return lambda site: site.post("/admin/policy/rollback", to=1, expect=2)


async def head_learnt(site: ControlledSite) -> None:
    lineage = HeadLineage(rule="code", parent="", manifests=(), serves=(), sha256="", made_at=0.0)
    LineageTable(site.store.database).add_head("code@1", lineage)


def learnt(act: str, **body: str) -> Step:
    return lambda site: site.put("/admin/learning", act=act, **body)


STARTED = (applied(ROLLED_OUT), steered("start"))
BY_ROUTE = {
    "PUT /admin/kill": [Act("kill.on", killed(on=True)), Act("kill.off", killed(on=False), (killed(on=True),))],
    "PUT /admin/flags": [Act("flags.set", flag_set)],
    "DELETE /admin/flags": [
        Act("flags.removed", lambda site: site.ask("DELETE", "/admin/flags?flag=speculation.enabled"), (flag_set,))
    ],
    "PUT /admin/health": [Act("breaker.forced_open", breaker)],
    "DELETE /admin/health": [
        Act(
            "drift.reset",
            lambda site: site.ask("DELETE", f"/admin/health?proposer=suffix&traffic_class={TRAFFIC_CLASS}"),
            (drift_poll, more_judged, drift_poll),
        )
    ],
    "PUT /admin/drills": [
        Act("drill.fault", drilled(inject=True)),
        Act("drill.run", drilled(result={"result": "passed"}), (drilled(inject=True),)),
    ],
    "PUT /admin/policy": [Act("policy.applied", applied(ON))],
    "POST /admin/policy/rollback": [Act("policy.rolled_back", rollback(), (applied(ON), applied(OFF)))],
    "POST /admin/rollouts/{rollout_id}/{command}": [
        Act("rollout.started", steered("start"), (applied(ROLLED_OUT),)),
        Act("rollout.held", steered("hold"), STARTED),
        Act("rollout.resumed", steered("resume"), (*STARTED, steered("hold"))),
        Act("rollout.promoted", steered("promote"), STARTED),
        Act("rollout.rolled_back", steered("rollback"), STARTED),
        Act("rollout.silenced", settled, STARTED),
        Act("rollout.silence_expired", settled, (*STARTED, settled, steered("rollback"))),
    ],
    "DELETE /admin/corpora/{file_id}": [Act("corpus.removed", corpus_removed, (corpus_added,))],
    "POST /admin/recording": [
        Act("recording.started", recording_started),
        Act("recording.downloaded", recording_downloaded, (recording_started,)),
    ],
    "DELETE /admin/recording": [
        Act("recording.stopped", lambda site: site.ask("DELETE", "/admin/recording"), (recording_started,))
    ],
    "PUT /admin/heads": [Act("head.swapped", lambda site: site.put("/admin/heads", head="none"))],
    "PUT /admin/learning": [
        Act("learning.due", learnt("run", rule="code"), (applied(LEARNS),)),
        Act("learning.stopped", learnt("stop"), (applied(LEARNS), learnt("run", rule="code"))),
        Act("head.retired", learnt("retire", head="code@1"), (head_learnt,)),
    ],
    "POST /admin/requests/{name}/bundle": [Act("request.exported", bundled, (served,))],
    "POST /admin/audit/{entry}/replay": [Act("request.replayed", replayed, (served,))],
}


def filed(control: str, value: str | None) -> Step:
    async def act(site: ControlledSite) -> None:
        ControlsFile(site.folder / "controls.json").set(control, Control(value, time.time(), by="ann"))
        await site.tick()

    return act


def flagged(*, kill: bool) -> Step:
    async def act(site: ControlledSite) -> None:
        write(site.folder / "flags.json", flag(), flag(default="on" if kill else "off"))
        await site.tick()

    return act


def written(name: str, text: str) -> Step:
    async def act(site: ControlledSite) -> None:
        other = site.folder / f"{name}.new"
        other.write_text(text)
        other.replace(site.folder / name)
        await site.tick()

    return act


async def tripped(site: ControlledSite) -> None:
    site.feature(HealthFeature).breakers.trip(("suffix", TRAFFIC_CLASS), "cliff")


async def key_created(site: ControlledSite) -> None:
    site.keys.add(new_key("acme")[0])
    await site.tick()


async def key_revoked(site: ControlledSite) -> None:
    site.keys.remove(site.keys.read()[0].id)
    await site.tick()


async def key_replaced(site: ControlledSite) -> None:
    """Another secret and another tenant under a known id."""
    [known], (other, _) = site.keys.read(), new_key("other")
    site.keys.remove(known.id)
    site.keys.add(known.model_copy(update={"hash": other.hash, "tenant": "other"}))
    await site.tick()


FILE_KILLED, FILE_BREAKER = filed("kill everything", ""), filed(f"breaker suffix {TRAFFIC_CLASS}", "forced_open")
BY_FILE = [
    Act("kill.on", FILE_KILLED),
    Act("kill.off", filed("kill everything", None), (FILE_KILLED,)),
    Act("kill.on", flagged(kill=True)),
    Act("kill.off", flagged(kill=False), (flagged(kill=True),)),
    Act("flags.reloaded", flagged(kill=True)),
    Act("breaker.forced_open", FILE_BREAKER),
    Act("breaker.closed", filed(f"breaker suffix {TRAFFIC_CLASS}", None), (FILE_BREAKER,)),
    Act("breaker.open", tripped),
    Act("policy.reloaded", written("policy.yaml", OFF), policy_file=True),
    Act("prices.reloaded", written("prices.yaml", PRICES.replace("1.0", "2.0"))),
    Act("keys.reloaded", key_created),
    Act("keys.reloaded", key_revoked, (key_created,)),
]
ACTS = [act for acts in BY_ROUTE.values() for act in acts] + BY_FILE


@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.action)
async def test_an_act_has_its_entry(tmp_path: Path, act: Act) -> None:
    async with site(tmp_path, policy_file=act.policy_file) as server:
        for step in act.before:
            await step(server)
        known = len(server.entries())
        await act.act(server)
        added = server.entries()[known:]
    assert act.action in [entry.action for entry in added]
    assert all(entry.details is not None and entry.details.actor for entry in added)


async def test_the_start_is_recorded_with_what_was_found(tmp_path: Path) -> None:
    KeyFile(tmp_path / "keys.json").add(new_key("acme", roles=("admin",))[0])
    ControlsFile(tmp_path / "controls.json").set("kill everything", Control("", time.time(), by="ann"))
    async with site(tmp_path, policy_file=True) as server:
        entries = server.entries()
    actions = {entry.action: entry.details for entry in entries}
    assert {"kill.on", "keys.loaded", "flags.loaded", "prices.loaded", "policy.loaded"} == set(actions)
    keys = actions["keys.loaded"]
    assert keys is not None
    assert '"roles": ["admin"]' in json.dumps(keys.after)
    assert "acme" not in json.dumps(keys.after)


async def test_a_replaced_key_is_recorded_without_its_secret_and_tenant(tmp_path: Path) -> None:
    async with site(tmp_path) as server:
        await key_created(server)
        await key_replaced(server)
        [*_, last] = server.entries()
        [key] = server.keys.read()
    assert last.action == "keys.reloaded"
    assert last.details is not None
    assert isinstance(last.details.after, dict)
    assert last.details.after["changed_fields"] == {key.id: ["hash", "tenant"]}
    assert "other" not in json.dumps(last.details.after)
    assert key.hash not in json.dumps(last.details.after)


ASKED_WITH_A_BODY = {"POST /admin/policy/check", "POST /admin/policy/explain"}
"""Routes that answer a question about a text and change nothing."""


async def test_the_list_has_every_route_that_changes_something(tmp_path: Path) -> None:
    async with site(tmp_path) as server:
        declared = {
            f"{method} {route.path}"
            for route in server.app.routes
            if isinstance(route, Route) and route.path.startswith("/admin/")
            for method in (route.methods or set()) - {"GET", "HEAD"}
        }
    acts = declared - ASKED_WITH_A_BODY
    assert acts == set(BY_ROUTE), "an act without an entry in this list may have none in the audit log"


def words_of(commands: str) -> set[str]:
    return {" ".join(command.split()) for command in commands.split(",")}


LOCAL = {
    "stop": (["stop", "--reason", "drill"], "kill.on"),
    "resume": (["resume"], "kill.off"),
    "keys create": (["keys", "create"], "key.created"),
    "keys revoke": (["keys", "revoke", "KEY"], "key.revoked"),
    "store prune": (["store", "prune", "--days", "1"], "records.pruned"),
    "store forget-tenant": (["store", "forget-tenant", "acme"], "tenant.forgotten"),
    "learning export": (["learning", "export", "code", "--to", "examples.jsonl"], "learning.exported"),
    "learning forget": (["learning", "forget", "acme"], "learning.forgotten"),
}
"""Commands that control something here; with --url they are acts of the server."""
ASKING = words_of(
    """
    show cost, show drift, show breakers, show eligibility, show correctness, show delivery, show shadow, show replicas,
    show traffic,
    breaker set, breaker reset, status, flags list, flags set, flags remove, pilot start, pilot status,
    pilot stop, pilot report, drill, rehearse record,
    policy apply, policy rollback, policy show, heads list, heads swap, rollout show, rollout start, rollout hold,
    rollout resume, rollout promote, rollout rollback
    """
)
"""Commands that ask a server."""
READING = words_of(
    """
    generate, chat, batch, bench, check, doctor, profile, load, tune, workload, rehearse measure, rehearse run,
    keys list, learning status, review, policy check, policy diff, policy explain, store status,
    store prices, audit verify, audit show, audit export, audit replay, show timeline, propose-server, monitoring
    """
)
STARTING = {
    "serve": "server.started",
    "store upgrade": "store.upgraded",
    "audit bundle": "request.exported",
    "incident": "incident.snapshot",
    "exact": "exact.passed",
    "rehearse check": "rehearsal.checked",
    "learning run": "learning.started",
}
"""Commands whose entries have tests of their own."""
MAKING = ("train", "models")
"""Groups that make and move files of models: a server that loads them records that at its start."""


def test_the_list_has_every_command() -> None:
    named = {command for name in COMMANDS if name not in MAKING for command in _commands(name)}
    known = LOCAL.keys() | ASKING | READING | STARTING.keys()
    assert named == known, "an act without an entry in this list may have none in the audit log"


def _commands(name: str) -> list[str]:
    group = getattr(load_command(name), "commands", None)
    return [name] if group is None or set(group) == {name} else [f"{name} {verb}" for verb in group]


def test_local_commands_have_their_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROLEPSIS_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> Any:
        done = CliRunner().invoke(app, [*words, "--json"] if "revoke" not in words else words)
        assert done.exit_code == 0, done.output
        assert "warning" not in done.stderr
        return json.loads(done.stdout) if "revoke" not in words else None

    run("store", "upgrade")
    assert usable_keys(ServerConfig()) is not None  # a server has been started once
    for words, action in LOCAL.values():
        created = next((key["id"] for key in run("keys", "list")["keys"]), "")
        run(*(created if word == "KEY" else word for word in words))
        assert [entry["action"] for entry in run("audit", "show", "--last", "1")["entries"]] == [action]
        [entry] = run("audit", "show", "--last", "1")["entries"]
        assert entry["details"]["actor"].startswith("command line, ")
    assert CliRunner().invoke(app, ["audit", "verify"]).exit_code == UNPROVEN, "no server has anchored it yet"


def test_an_act_whose_store_is_gone_stands_with_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROLEPSIS_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "store.sqlite").write_text("no database")
    done = CliRunner().invoke(app, ["stop"])
    assert (done.exit_code, "kill.on is not in the audit log" in done.stderr) == (0, True)
    assert "kill everything" in ControlsFile(tmp_path / "controls.json").read().local
