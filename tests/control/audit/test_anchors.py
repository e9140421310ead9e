"""Anchors: what each place gets, what happens when it does not take it, and a chain that lost one."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import delete, update
from structlog.testing import capture_logs

from prolepsis.control.audit import chain
from prolepsis.control.audit.anchors import AnchorFeature, AnchorPlace, places, read_anchors
from prolepsis.control.store.database import Database
from prolepsis.control.store.links import digest_at
from prolepsis.control.store.signing import AuditKeys
from prolepsis.control.store.tables import chain_heads, chain_links
from prolepsis.core.audit_event import AuditEvent
from prolepsis.core.errors import ConfigError
from tests.control.audit.test_tampering import in_memory
from tests.loopback import Reply, Request, serving


@pytest.fixture
def keys(tmp_path: Path) -> AuditKeys:
    return AuditKeys(tmp_path / "audit-key.pem")


@pytest.fixture
def database(keys: AuditKeys) -> Database:
    made = in_memory(keys)
    append(made)
    return made


def append(database: Database) -> None:
    with database.write() as connection:
        chain.append(connection, [AuditEvent(actor="ann", action="plan.applied")])


def place_of(setting: str | Path) -> AnchorPlace:
    [place] = places([str(setting)], Path("unused"))
    return place


def file_of(place: AnchorPlace) -> Path:
    assert place.path is not None
    return place.path


async def test_a_file_gets_each_new_head_once(tmp_path: Path, keys: AuditKeys, database: Database) -> None:
    place = place_of(tmp_path / "elsewhere" / "anchors.jsonl")
    feature = AnchorFeature(database, [place], CollectorRegistry(), period_s=1.0)
    await feature.tick()
    await feature.tick()
    append(database)
    await feature.close()
    heads = read_anchors(file_of(place)).heads
    assert [head.seq for head in heads] == [1, 2]
    assert [keys.public.fault(head) for head in heads] == [None, None]


async def test_a_log_line_is_an_anchor(tmp_path: Path, keys: AuditKeys, database: Database) -> None:
    with capture_logs() as logs:
        await AnchorFeature(database, [place_of("log")], CollectorRegistry(), period_s=1.0).tick()
    [line] = [json.dumps(entry) for entry in logs if entry["event"] == "audit_anchor"]
    (tmp_path / "log").write_text("\n".join([json.dumps({"event": "listening"}), "", line]))
    [head] = read_anchors(tmp_path / "log").heads
    assert keys.public.fault(head) is None


async def test_a_torn_line_costs_no_other_anchor(tmp_path: Path, database: Database) -> None:
    """A server that was killed while it wrote leaves half a line."""
    place = place_of(tmp_path / "anchors.jsonl")
    await AnchorFeature(database, [place], CollectorRegistry(), period_s=1.0).tick()
    with file_of(place).open("a") as file:
        file.write('{"chain": "audit", "seq": 2, "dig')
    with capture_logs() as logs:
        AnchorFeature(database, [place], CollectorRegistry(), period_s=1.0)
    assert [(line["event"], line["lines"]) for line in logs] == [("audit_anchors_torn", [2])]
    append(database)
    await AnchorFeature(database, [place], CollectorRegistry(), period_s=1.0).tick()
    found = read_anchors(file_of(place))
    assert ([head.seq for head in found.heads], found.torn) == ([1, 2], [2])


@pytest.mark.parametrize("line", ["[" * 100_000, "\udcff", '{"signature": "x"}', '{"signature": 1, "seq": []}'])
def test_no_line_makes_the_others_unreadable(tmp_path: Path, line: str) -> None:
    (tmp_path / "anchors.jsonl").write_bytes(line.encode("utf-8", "surrogateescape"))
    assert read_anchors(tmp_path / "anchors.jsonl").torn == [1]


@contextmanager
def webhook(status: list[int], bodies: list[object]) -> Iterator[str]:
    """Serve a URL that takes anchors with the present status."""

    def take(request: Request) -> Reply:
        bodies.append(json.loads(request.body))
        return Reply(status[0])

    with serving(take) as url:
        yield f"{url}/anchors?token=secret"


async def test_a_webhook_gets_it_again_until_it_takes_it(database: Database) -> None:
    status, bodies, registry = [500], list[object](), CollectorRegistry()
    with webhook(status, bodies) as url:
        feature = AnchorFeature(database, [place_of(url)], registry, period_s=1.0)
        with capture_logs() as logs:
            await feature.tick()
        status[0] = 200
        await feature.tick()
        await feature.tick()
    assert [body["seq"] for body in bodies if isinstance(body, dict)] == [1, 1]
    assert "secret" not in str(logs)
    assert registry.get_sample_value("prolepsis_audit_anchor_failures_total", {"place": "127.0.0.1"}) == 1.0
    assert (
        registry.get_sample_value("prolepsis_audit_anchored_entries", {"place": "127.0.0.1", "chain": "audit"}) == 1.0
    )


async def test_one_replica_anchors_at_a_webhook_and_each_in_its_own_file(tmp_path: Path, database: Database) -> None:
    bodies = list[object]()
    with webhook([200], bodies) as url:
        files = [place_of(tmp_path / name) for name in ("a.jsonl", "b.jsonl")]
        replicas = [
            AnchorFeature(database, [place_of(url), file], CollectorRegistry(), period_s=60.0) for file in files
        ]
        for replica in replicas:
            await replica.tick()
        assert len(bodies) == 1
        await replicas[1].close()
        assert len(bodies) == 2, "the last anchor of a server that stops does not wait for a turn"
    assert [len(read_anchors(file_of(file)).heads) for file in files] == [1, 1]


async def test_each_webhook_of_a_host_gets_anchors(database: Database) -> None:
    bodies = list[object]()
    with webhook([200], bodies) as url:
        both = [place_of(url), place_of(f"{url}2")]
        await AnchorFeature(database, both, CollectorRegistry(), period_s=1.0).tick()
    assert len(bodies) == 2


async def test_a_chain_that_lost_an_anchor_is_reported_even_after_a_restart(tmp_path: Path, database: Database) -> None:
    place, registry = place_of(tmp_path / "anchors.jsonl"), CollectorRegistry()
    append(database)
    await AnchorFeature(database, [place], CollectorRegistry(), period_s=1.0).tick()
    with database.write() as connection:
        first = digest_at(connection, 1)
        connection.execute(delete(chain_links).where(chain_links.c.seq == 2))
        connection.execute(update(chain_heads).values(seq=1, digest=first))
    restarted = AnchorFeature(database, [place], registry, period_s=1.0)
    with capture_logs() as logs:
        await restarted.tick()
        append(database)
        await restarted.tick()
    assert registry.get_sample_value("prolepsis_audit_chain_broken") == 1.0
    assert [(line["event"], line["seq"]) for line in logs] == [("audit_chain_broken", 2)]


def test_places_are_named_by_the_setting(tmp_path: Path) -> None:
    kinds = places(["auto", "log", "https://example.org/hook", "anchors.jsonl", "none"], tmp_path / "default")
    assert [(one.path is None, one.turn is None) for one in kinds] == [
        (False, True),
        (True, True),
        (True, False),
        (False, True),
    ]
    assert [one.name for one in kinds] == [str(tmp_path / "default"), "log", "example.org", "anchors.jsonl"]
    for wrong in ("", "ftp://example.org"):
        with pytest.raises(ConfigError, match="allowed: auto, log"):
            places([wrong], tmp_path)


@pytest.mark.parametrize(
    "address", ["example.org:hook", "example.org:99999", "user:secret@example.org:-1", "", ":80", "[::1", "a b:x/y"]
)
def test_an_address_without_a_usable_port_or_host_is_refused_at_the_start(tmp_path: Path, address: str) -> None:
    with pytest.raises(ConfigError, match=r"allowed: http\(s\)://HOST or HOST:PORT") as found:
        places([f"https://{address}"], tmp_path)
    assert "secret" not in str(found.value)
