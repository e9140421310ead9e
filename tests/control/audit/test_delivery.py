"""Delivery of audit entries: what arrives, in which form, and from where a delivery continues."""

import errno
import io
import json
import stat
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import ClassVar

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse

from prolepsis.control.audit.commands.log import exported
from prolepsis.control.audit.delivery import BATCH, Cursor, JsonLines, deliver, destination, held_cursor
from prolepsis.control.audit.entry import SERVED, AuditEntry, Details
from prolepsis.control.audit.verify import verify
from prolepsis.control.store.links import START_OF_CHAIN
from prolepsis.core.errors import ConfigError, DeliveryFailed
from tests.waiting import ended


class Taken:
    """A destination that fails at chosen deliveries."""

    def __init__(self, failing: Sequence[int] = ()) -> None:
        self.entries: list[int] = []
        self._failing = failing
        self._calls = 0

    def deliver(self, entries: Sequence[AuditEntry]) -> None:
        self._calls += 1
        if self._calls in self._failing:
            raise DeliveryFailed("the other side is away")
        self.entries += [entry.seq for entry in entries]

    def close(self) -> None: ...


def chain_of(number: int, action: str = "kill.on") -> list[AuditEntry]:
    entries: list[AuditEntry] = []
    previous = START_OF_CHAIN
    for seq in range(1, number + 1):
        details = Details(actor="ann", tenant="", subject="é", before=None, after={"seq": seq}, salt="00")
        entry = AuditEntry(
            seq=seq,
            uid=f"{seq:032x}",
            at="2026-11-22T10:00:00.000001+00:00",
            action=action if seq % 2 else SERVED,
            versions={},
            erases=(),
            details=details,
            details_digest=details.digest(),
            previous=previous,
            digest="",
        )
        entries.append(replace(entry, digest=entry.expected_digest()))
        previous = entries[-1].digest
    return entries


def test_after_a_failure_nothing_is_skipped_and_at_most_a_batch_comes_again(tmp_path: Path) -> None:
    log, to = chain_of(2 * BATCH + 5), Taken(failing=[2])
    with pytest.raises(DeliveryFailed):
        deliver(log, Cursor(tmp_path / "cursor.json"), to)
    cursor = Cursor(tmp_path / "cursor.json")
    assert (cursor.seq, to.entries) == (BATCH, list(range(1, BATCH + 1)))
    assert deliver(log[cursor.seq :], cursor, to) == BATCH + 5
    assert to.entries == list(range(1, 2 * BATCH + 6))
    assert deliver([], cursor, to) == 0


def test_another_log_is_refused(tmp_path: Path) -> None:
    deliver(chain_of(3), Cursor(tmp_path / "cursor.json"), Taken())
    to = Taken()
    with pytest.raises(ConfigError, match="entry 4 does not continue entry 3 of the cursor"):
        deliver(chain_of(5, "kill.off")[3:], Cursor(tmp_path / "cursor.json"), to)
    assert to.entries == []
    (tmp_path / "cursor.json").write_text('{"seq": -1}')
    with pytest.raises(ConfigError, match="cursor"):
        Cursor(tmp_path / "cursor.json")


def test_an_export_of_the_first_version_verifies() -> None:
    """Exports are kept for years: a change of what is digested would make each of them look forged."""
    with (Path(__file__).parent / "export.jsonl").open(encoding="utf-8") as lines:
        found = verify(exported(lines))
    assert (found.num_entries, found.num_erased, found.faults) == (3, 1, ())


def test_a_cursor_begins_where_configured_and_passes_over_skipped_actions() -> None:
    cursor, to = Cursor(None, 2), Taken()
    assert deliver(chain_of(6)[2:], cursor, to, frozenset([SERVED])) == 2
    assert (to.entries, cursor.seq) == ([3, 5], 6)


def test_a_file_keeps_its_lines_or_begins_again(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    for append in (False, True, False):
        if not append and file.exists():
            file.chmod(0o644)
        with closing(destination(str(file), append=append)) as to:
            to.deliver(chain_of(2))
        assert len(file.read_text().splitlines()) == (4 if append else 2)
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, "it may hold texts of clients"
    assert json.loads(file.read_text().splitlines()[0])["details"]["subject"] == "é"
    with pytest.raises(ConfigError, match="cannot be written"):
        destination(str(tmp_path / "missing" / "file"), append=True)


def test_an_entry_after_a_line_that_was_torn_has_a_line_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    file.write_text('{"seq": 1, "uid"')
    with closing(destination(str(file), append=True)) as to:
        to.deliver(chain_of(1))
    assert json.loads(file.read_text().splitlines()[1])["seq"] == 1


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), DeliveryFailed),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), BrokenPipeError),
    ],
)
def test_a_stream_that_cannot_be_written_fails_and_one_without_a_reader_is_not_retried(
    error: OSError, raised: type[Exception]
) -> None:
    class Failing(io.StringIO):
        def flush(self) -> None:
            raise error

    with pytest.raises(raised, match=error.strerror):
        JsonLines(Failing()).deliver(chain_of(1))


def test_a_cursor_belongs_to_one_export_at_a_time(tmp_path: Path) -> None:
    file = tmp_path / "cursor.json"
    with held_cursor(file, 7) as cursor:
        cursor.advance(chain_of(1)[0])
        with pytest.raises(ConfigError, match="another export continues from cursor"), held_cursor(file, 0):
            pass
    with held_cursor(file, 0) as cursor:
        assert cursor.seq == 1


@pytest.mark.parametrize("name", ["", "syslog://host", "ftp://host/x", "http://host:no/v1/logs"])
def test_an_unknown_destination_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match=r"output is .*; allowed: a file, or http"):
        destination(name, append=True)


class Logs(BaseHTTPRequestHandler):
    """A receiver of OTLP logs that refuses the first entry that it is sent, and fails at the third request."""

    bodies: ClassVar[list[ExportLogsServiceRequest]]
    keys: ClassVar[set[str | None]] = set()

    def do_POST(self) -> None:
        self.bodies.append(ExportLogsServiceRequest.FromString(self.rfile.read(int(self.headers["content-length"]))))
        self.keys.add(self.headers["api-key"])
        reply = ExportLogsServiceResponse()
        if len(self.bodies) == 1:
            reply.partial_success.rejected_log_records = 1
            reply.partial_success.error_message = "too old"
        self.send_response(503 if len(self.bodies) == 3 else 200)
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("content-length", str(reply.ByteSize()))
        self.end_headers()
        self.wfile.write(reply.SerializeToString())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_entries_that_a_receiver_refuses_are_not_delivered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key=k%20y")
    Logs.bodies = []
    with HTTPServer(("127.0.0.1", 0), Logs) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            with closing(destination(f"http://127.0.0.1:{server.server_port}/v1/logs", append=True)) as to:
                with pytest.raises(DeliveryFailed, match="refused 1 entries: too old"):
                    to.deliver(chain_of(2))
                to.deliver(chain_of(2))
                with pytest.raises(DeliveryFailed, match="did not take 2 entries: status 503"):
                    to.deliver(chain_of(2))
        finally:
            server.shutdown()
            ended(thread)
    assert Logs.keys == {"k y"}
    [logs] = Logs.bodies[1].resource_logs
    assert "service.name" in {one.key for one in logs.resource.attributes}
    records = logs.scope_logs[0].log_records
    assert [json.loads(record.body.string_value)["seq"] for record in records] == [1, 2]
    assert records[0].attributes[0].value.int_value == 1
    assert (records[0].event_name, records[0].time_unix_nano) == ("prolepsis.audit.kill.on", 1_795_341_600_000_001_000)


def test_a_receiver_that_is_away_is_a_failed_delivery() -> None:
    with HTTPServer(("127.0.0.1", 0), Logs) as server:
        url = f"http://127.0.0.1:{server.server_port}/v1/logs"
    with closing(destination(url, append=True)) as to, pytest.raises(DeliveryFailed, match=url):
        to.deliver(chain_of(1))


@pytest.mark.parametrize("name", ["CERTIFICATE", "CLIENT_CERTIFICATE"])
def test_certificates_of_no_use_are_named(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"OTEL_EXPORTER_OTLP_{name}", str(tmp_path / "none.pem"))
    with pytest.raises(ConfigError, match=r"none\.pem"):
        destination("https://127.0.0.1/v1/logs", append=True)
