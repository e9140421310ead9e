"""/admin/policy: versions in the store, two who change them at once, and stores that are gone."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import httpx2
import pytest

from prolepsis.control.audit import chain
from prolepsis.control.audit.verify import verify
from prolepsis.control.policy import versions
from prolepsis.control.policy.routes import PolicyChangedReply, PolicyReply, PolicyVersionsReply
from prolepsis.control.policy.runtime import Policies
from prolepsis.control.policy.source import PolicyFile
from prolepsis.control.policy.versions import PolicyText
from prolepsis.control.store.database import Database
from prolepsis.control.store.migrate import upgrade
from prolepsis.control.store.store import Store
from prolepsis.control.store.writer import ItemWriter
from prolepsis.server.front.key_file import KeyFile, new_key
from prolepsis.server.front.keys import Keys
from tests.control.store.databases import cut_off, opened, sqlite_setting
from tests.server.documents import read
from tests.world.site import Site

ON, OFF = "version: 1\ndefault: {mode: on}\n", "version: 2\ndefault: {mode: off}\n"
ROLLED_OUT = "default: {mode: on, rollout: {stages: [50]}}\n"


class Server(Site):
    def __init__(self, source: Database | PolicyFile, keys: Keys | None = None) -> None:
        parts = {"policy": source} if isinstance(source, PolicyFile) else {"store": Store(source, ItemWriter())}
        super().__init__(keys=keys, **parts)
        self.policies = self.feature(Policies)

    async def apply(self, text: str, expect: int, reason: str = "") -> httpx2.Response:
        return await self.http.put("/admin/policy", json={"text": text, "expect": expect, "reason": reason})

    async def mode(self) -> tuple[str | None, bool]:
        """Return version in the reply of a request, and whether it may speculate."""
        asked: dict[str, Any] = {"model": "tiny", "prompt": "Hi", "speculation": {"metrics": True}}
        reply = await self.post("/v1/completions", **asked)
        version = reply.json()["metrics"]["effective"].get("policy_version")
        return version and version.split("@")[0], self.engine.requests[-1].speculation.enabled


@asynccontextmanager
async def replicas(setting: str, number: int) -> AsyncIterator[list[Server]]:
    databases = [opened(setting) for _ in range(number)]
    servers = [Server(database) for database in databases]
    yield servers
    for server, database in zip(servers, databases, strict=True):
        await server.http.aclose()
        database.close()


def history(setting: str) -> list[tuple[int, str, str]]:
    with closing(opened(setting)) as database, database.read() as connection:
        return [(one.version, one.author, one.reason) for one in versions.history(connection, 10)]


async def test_versions_are_applied_listed_and_rolled_back(sqlite: str) -> None:
    async with replicas(sqlite, 1) as [server]:
        assert await server.mode() == (None, True)  # no version yet: callers decide alone
        applied = await server.apply(OFF, 0, "start")
        assert applied.status_code == 200, applied.text
        reply = read(PolicyChangedReply, applied.json())
        assert (reply.version, reply.author, reply.reason, reply.warnings) == (1, "developer", "start", [])
        assert await server.mode() == ("2", False)
        assert (await server.apply(ON, 1)).status_code == 200
        assert await server.mode() == ("1", True)
        back = await server.http.post("/admin/policy/rollback", json={"to": 1, "expect": 2, "reason": "slow"})
        assert (back.json()["version"], back.json()["reason"]) == (3, "rolled back to version 1: slow")
        assert await server.mode() == ("2", False)

        listed = read(PolicyVersionsReply, (await server.get("/admin/policy/versions")))
        assert (listed.in_use, [one.version for one in listed.versions]) == (3, [3, 2, 1])
        texts = [(await server.get(f"/admin/policy/versions/{i}")) for i in (1, 2, 3)]
        assert [read(PolicyText, one).text for one in texts] == [OFF, ON, OFF]
        shown = read(PolicyReply, (await server.get("/admin/policy")))
        assert (shown.source, shown.version, shown.fault) == ("store", 3, None)
        with closing(opened(sqlite)) as database, database.read() as connection:
            entries = list(chain.entries(connection))
        assert verify(entries).faults == ()
        assert [entry.action for entry in entries] == ["policy.applied", "policy.applied", "policy.rolled_back"]
        told = entries[2].details
        assert told is not None
        assert isinstance(told.before, dict)
        assert isinstance(told.after, dict)
        assert (told.actor, told.before["version"], told.after["version"]) == ("developer", 2, 3)


async def test_a_change_of_another_version_is_refused_with_both_versions(sqlite: str) -> None:
    async with replicas(sqlite, 2) as [one, other]:
        assert (await one.apply(ON, 0)).status_code == 200
        refused = await other.apply(OFF, 0)
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "store_conflict")
        assert "version 1 by developer, not version 0" in refused.json()["error"]["message"]
        stale = await other.http.post("/admin/policy/rollback", json={"to": 1, "expect": 7})
        assert (stale.status_code, await other.mode()) == (409, (None, True))
        await other.policies.tick()
        assert await other.mode() == ("1", True)


async def test_one_of_several_simultaneous_changes_wins_and_all_replicas_follow(postgresql: str) -> None:
    async with replicas(postgresql, 4) as servers:
        texts = [f"version: {i}\ndefault: {{mode: off}}\n" for i in range(4)]
        asked = [server.apply(text, 0, text[:10]) for server, text in zip(servers, texts, strict=True)]
        replies = await asyncio.gather(*asked)
        assert sorted(reply.status_code for reply in replies) == [200, 409, 409, 409]
        [winner] = [i for i, reply in enumerate(replies) if reply.status_code == 200]
        for server in servers:
            await server.policies.tick()
            assert await server.mode() == (str(winner), False)
        assert history(postgresql) == [(1, "developer", f"version: {winner}")]


async def test_a_version_that_cannot_be_used_is_refused_with_all_that_is_wrong(sqlite: str) -> None:
    async with replicas(sqlite, 1) as [server]:
        await server.apply(ON, 0)
        bad = "rules:\n- {name: a, match: {tier: premum}}\n- {name: a, match: {}, mode: on, proposers: [sufix]}\n"
        refused = await server.apply(bad, 1)
        error = refused.json()["error"]
        assert (refused.status_code, error["code"], error["param"]) == (400, "invalid_policy", "text")
        for said in ("policy:2: rules[0].match.tier", "did you mean 'premium'", "policy:3:", "did you mean 'suffix'"):
            assert said in error["message"]
        assert (await server.mode())[0] == "1"
        assert history(sqlite)[0][0] == 1
        odd = await server.apply("rules:\n- {name: a, match: {}, mode: on, proposers: [draft_head]}\n", 1)
        assert "none is loaded here" in odd.json()["warnings"][0]
        with closing(opened(sqlite)) as database, database.read() as connection:
            assert len(list(chain.entries(connection))) == 2


async def test_an_unusable_version_leaves_the_last_good_one_in_use(sqlite: str) -> None:
    async with replicas(sqlite, 1) as [server]:
        await server.apply(ON, 0)
        with closing(opened(sqlite)) as database:
            with database.write() as connection:
                versions.put(connection, "default: {mode: warp}", author="a newer server", expect=1)
            for _ in range(2):
                await server.policies.tick()
                assert await server.mode() == ("1", True)
            shown = await server.get("/admin/policy")
            assert shown["version"] == 1
            assert "version 2:1: default.mode is 'warp'" in shown["fault"]
        assert (await server.apply(OFF, 2)).status_code == 200
        assert await server.mode() == ("2", False)
        assert (await server.get("/admin/policy"))["fault"] is None


async def test_rollouts_of_a_version_come_with_it_and_go_with_it(sqlite: str) -> None:
    async with replicas(sqlite, 2) as [one, other]:
        await one.apply(ROLLED_OUT, 0)
        await other.policies.tick()
        for server in (one, other):
            [rollout] = (await server.get("/admin/rollouts"))["rollouts"]
            assert rollout["rule"] == "default"
        await one.apply(ON, 1)
        assert (await one.get("/admin/rollouts")) == {"rollouts": []}


async def test_a_database_that_is_gone_leaves_the_last_version(postgresql: str) -> None:
    async with replicas(postgresql, 1) as [server]:
        await server.apply(OFF, 0)
        with cut_off(postgresql):
            await server.policies.tick()
            assert await server.mode() == ("2", False)
            refused = await server.apply(ON, 1)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "store_unavailable")
            assert "not currently accepting connections" in (await server.get("/admin/policy"))["fault"]
            # a server that starts now does not know what may speculate: nothing does
            async with replicas(postgresql, 1) as [late]:
                assert await late.mode() == ("not-read", False)
                assert (await late.get("/admin/policy"))["version"] is None
        await server.policies.tick()
        assert (await server.get("/admin/policy"))["fault"] is None
        assert (await server.apply(ON, 1)).status_code == 200


async def test_a_store_that_was_emptied_takes_no_policy_away(tmp_path: Path) -> None:
    setting = sqlite_setting(tmp_path)
    file = tmp_path / "store.sqlite"
    async with replicas(setting, 1) as [server]:
        assert await server.mode() == (None, True)  # no file, so no policy
        with closing(opened(setting)) as database:
            upgrade(database)
            await server.apply(OFF, 0)
            file.unlink()
            await server.policies.tick()
            assert await server.mode() == ("2", False)
            upgrade(database)
            assert file.exists()
        await server.policies.tick()
        assert await server.mode() == ("2", False)
        assert "has no policy any longer; version 1 stays" in (await server.get("/admin/policy"))["fault"]


async def test_a_file_as_source_is_reported(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(ON)
    server = Server(PolicyFile(tmp_path / "policy.yaml"))
    shown = read(PolicyReply, (await server.get("/admin/policy")))
    assert (shown.source, shown.version, shown.name) == ("file", None, str(tmp_path / "policy.yaml"))
    for reply in (await server.apply(OFF, 0), await server.http.get("/admin/policy/versions")):
        assert (reply.status_code, reply.json()["error"]["code"]) == (409, "policy_not_in_store")
        assert "policy.yaml" in reply.json()["error"]["message"]
    (tmp_path / "policy.yaml").write_text("default: {mode: warp}")
    await server.policies.tick()
    assert "'warp'" in (await server.get("/admin/policy"))["fault"]


async def test_without_store_and_file_there_is_none() -> None:
    async with Site().http as http:
        assert read(PolicyReply, (await http.get("/admin/policy")).json()).source == "none"
        refused = await http.put("/admin/policy", json={"text": ON, "expect": 0})
        assert (refused.status_code, "serve with --store" in refused.json()["error"]["message"]) == (409, True)


@pytest.mark.parametrize(
    ("role", "reads", "acts"),
    [("client", 403, 403), ("viewer", 200, 403), ("auditor", 200, 403), ("operator", 200, 200), ("admin", 200, 200)],
)
async def test_roles(tmp_path: Path, sqlite: str, role: Any, reads: int, acts: int) -> None:
    with closing(opened(sqlite)) as database:
        file = KeyFile(tmp_path / "keys.json")
        record, key = new_key("acme", roles=(role,))
        file.add(record)
        server = Server(database, Keys(file))
        http = server.client(authorization=f"Bearer {key}")
        assert (await http.get("/admin/policy")).status_code == reads
        assert (await http.get("/admin/policy/versions")).status_code == reads
        assert (await http.put("/admin/policy", json={"text": ON, "expect": 0})).status_code == acts
        assert (await http.post("/admin/policy/rollback", json={"to": 1, "expect": 1})).status_code == acts
        version = await http.get("/admin/policy/versions/1")
        assert version.status_code == (200 if acts == 200 else 404 if reads == 200 else 403)
        if acts == 200:
            assert version.json()["author"] == record.id


@pytest.mark.parametrize("version", ["0", "7", "x", "9" * 12, "-1"])
async def test_a_version_that_is_not_there_is_404(sqlite: str, version: str) -> None:
    with closing(opened(sqlite)) as database:
        server = Server(database)
        reply = await server.http.get(f"/admin/policy/versions/{version}")
        assert (reply.status_code, reply.json()["error"]["code"]) == (404, "unknown_version")
        reply = await server.http.post("/admin/policy/rollback", json={"to": 7, "expect": 0})
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "version")
