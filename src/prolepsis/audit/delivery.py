"""Delivery of audit entries to other systems: JSON lines, syslog, OTLP logs. Each entry arrives at least once."""

import json
import os
import socket
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol, TextIO
from urllib.parse import SplitResult

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from prolepsis.audit.entry import AuditEntry
from prolepsis.core.errors import ConfigError, DeliveryFailed
from prolepsis.core.extras import OTEL
from prolepsis.core.files import JsonFile, exclusive
from prolepsis.core.network import address, scheme_of

if TYPE_CHECKING:
    from opentelemetry._logs import LogRecord
    from requests import Response

BATCH = 100
"""Entries of one delivery; after a failure at most so many arrive twice."""
TIMEOUT_S = 10.0
_UDP_BYTES = 60_000
_LOG_AUDIT, _INFORMATIONAL = 13, 6  # RFC 5424, section 6.2.1
_PORT = {"syslog": 601, "syslog+udp": 514}  # RFC 3195, RFC 5426
_ALLOWED = "a file, syslog://HOST[:PORT] (TCP), syslog+udp://HOST[:PORT], or http(s)://HOST:PORT/v1/logs (OTLP)"


class Destination(Protocol):
    """Another system that takes entries."""

    def deliver(self, entries: Sequence[AuditEntry]) -> None:
        """Hand over entries; they have been taken when this returns. Raises `DeliveryFailed`."""

    def close(self) -> None: ...


def json_line(entry: AuditEntry) -> str:
    """Return an entry as one line of JSON, without its end."""
    return json.dumps(entry.plain(), ensure_ascii=False)


class JsonLines:
    """A file or standard output, one entry a line. A pipe whose reader is gone is a `BrokenPipeError`: it stays so."""

    def __init__(self, to: IO[str]) -> None:
        self._to = to

    def deliver(self, entries: Sequence[AuditEntry]) -> None:
        try:
            self._to.writelines(json_line(entry) + "\n" for entry in entries)
            self._to.flush()
            if self._to.seekable():
                os.fsync(self._to.fileno())
        except BrokenPipeError:
            raise
        except OSError as error:
            raise DeliveryFailed(f"entries cannot be written: {error.strerror}") from None

    def close(self) -> None:
        if self._to is not sys.stdout:
            self._to.close()


class Syslog:
    """A syslog server (RFC 5424), over TCP with counted octets (RFC 6587) or over UDP.

    Syslog has no acknowledgements: what the network had taken before a failure may be lost.
    """

    def __init__(self, url: SplitResult) -> None:
        self._address = (url.hostname or "", url.port or _PORT[url.scheme])
        self._by_udp = url.scheme == "syslog+udp"
        self._socket: socket.socket | None = None

    def deliver(self, entries: Sequence[AuditEntry]) -> None:
        try:
            connected = self._connected()
            for entry in entries:
                message = syslog_message(entry)
                if self._by_udp:
                    connected.send(message if len(message) <= _UDP_BYTES else syslog_message(entry, has_details=False))
                else:
                    connected.sendall(b"%d %b" % (len(message), message))
        except OSError as error:
            self.close()
            raise DeliveryFailed(f"syslog at {self._address[0]}:{self._address[1]}: {error}") from None

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _connected(self) -> socket.socket:
        if self._socket is None and self._by_udp:
            family, kind, protocol, _, address = socket.getaddrinfo(*self._address, type=socket.SOCK_DGRAM)[0]
            self._socket = socket.socket(family, kind, protocol)
            self._socket.connect(address)
        elif self._socket is None:
            self._socket = socket.create_connection(self._address, TIMEOUT_S)
        return self._socket


def syslog_message(entry: AuditEntry, *, has_details: bool = True) -> bytes:
    """Return an entry as a syslog message: its action as MSGID, its JSON as text, without details where too long."""
    priority = 8 * _LOG_AUDIT + _INFORMATIONAL
    action = "".join(c for c in entry.action if "!" <= c <= "~")[:32] or "-"
    text = json_line(entry) if has_details else json.dumps({**entry.plain(), "details": "too long for a datagram"})
    header = f"<{priority}>1 {entry.at} {socket.gethostname() or '-'} prolepsis - {action} -"
    return f"{header} \N{ZERO WIDTH NO-BREAK SPACE}{text}".encode()


class OtlpLogs:
    """An OTLP endpoint for logs over HTTP; `OTEL_EXPORTER_OTLP_HEADERS` and the like hold. Needs the extra `otel`."""

    def __init__(self, url: str) -> None:
        OTEL.require("delivery by OTLP", param="output")
        import requests
        from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter

        session = requests.Session()
        session.hooks["response"].append(self._see)  # the SDK takes no notice of what the receiver refuses
        self._refused = ""
        self._url = url
        self._exporter = OTLPLogExporter(url, timeout=TIMEOUT_S, session=session)

    def deliver(self, entries: Sequence[AuditEntry]) -> None:
        from opentelemetry.sdk._logs import ReadableLogRecord
        from opentelemetry.sdk._logs.export import LogRecordExportResult
        from opentelemetry.sdk.resources import Resource

        resource = Resource.create({"service.name": "prolepsis"})
        records = [ReadableLogRecord(_log_record(entry), resource) for entry in entries]
        if self._exporter.export(records) is not LogRecordExportResult.SUCCESS:
            raise DeliveryFailed(f"{self._url} did not take {len(records)} entries")
        if self._refused:
            raise DeliveryFailed(f"{self._url} refused {self._refused}")

    def close(self) -> None:
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def _see(self, response: "Response", **_: object) -> None:
        is_reply = response.ok and response.headers.get("content-type") == "application/x-protobuf"
        self._refused = _refused(response.content) if is_reply else ""


def _refused(reply: bytes) -> str:
    """Return how many entries of a request a receiver refused, and why; "" for none (OTLP's partial success)."""
    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse

    partial = ExportLogsServiceResponse.FromString(reply).partial_success
    return f"{partial.rejected_log_records} entries: {partial.error_message}" if partial.rejected_log_records else ""


def _log_record(entry: AuditEntry) -> "LogRecord":
    from opentelemetry._logs import LogRecord, SeverityNumber

    at = int(datetime.fromisoformat(entry.at).timestamp() * 1e6) * 1000
    actor = entry.details.actor if entry.details else ""
    return LogRecord(
        timestamp=at,
        observed_timestamp=at,
        severity_number=SeverityNumber.INFO,
        severity_text="INFO",
        body=json_line(entry),
        attributes={"prolepsis.audit.seq": entry.seq, "prolepsis.audit.actor": actor},
        event_name=f"prolepsis.audit.{entry.action}",
    )


def destination(name: str, *, append: bool) -> Destination:
    """Open what `name` says: a file, a syslog server or an OTLP endpoint; raises `ConfigError`.

    `append`: a file keeps what it has.
    """
    if (url := address(name, _PORT)) is not None:
        return Syslog(url)
    if address(name) is not None:
        return OtlpLogs(name)
    if scheme_of(name) or not name:
        raise ConfigError(f"output is {name[:80]!r}; allowed: {_ALLOWED}", param="output")
    try:
        file = _own_file(Path(name), append=append)
        if append and Path(name).is_file() and _ends_in_mid_line(Path(name)):
            file.write("\n")  # its writer was killed: the next entry has a line of its own
        return JsonLines(file)
    except OSError as error:
        raise ConfigError(f"{name} cannot be written: {error.strerror}", param="output") from None


def _own_file(path: Path, *, append: bool) -> TextIO:
    """Open a file that only its owner may read, as entries may hold texts; one that is continued stays as it is."""

    def own(name: str, flags: int) -> int:
        descriptor = os.open(name, flags, 0o600)
        if not append and stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.fchmod(descriptor, 0o600)
        return descriptor

    return open(path, "a" if append else "w", encoding="utf-8", opener=own)  # JsonLines closes it


def _ends_in_mid_line(file: Path) -> bool:
    with file.open("rb") as content:
        if not content.seek(0, os.SEEK_END):
            return False
        content.seek(-1, os.SEEK_END)
        return content.read() != b"\n"


@contextmanager
def held_cursor(file: Path | None, after: int) -> Iterator["Cursor"]:
    """Hold a cursor that no other export moves meanwhile; raises `ConfigError` where one does."""
    with ExitStack() as held:
        if file is not None:
            try:
                held.enter_context(exclusive(file.with_name(f"{file.name}.lock"), wait=False))
            except BlockingIOError:
                raise ConfigError(f"another export continues from cursor {file}", param="cursor") from None
            except OSError as error:
                raise ConfigError(f"cursor {file} cannot be locked: {error.strerror}", param="cursor") from None
        yield Cursor(file, after)


class Cursor:
    """Position up to which a log was delivered, kept in a file; without a file, in memory."""

    def __init__(self, file: Path | None, after: int = 0) -> None:
        """`after`: the number to begin after where the file does not exist yet."""
        self._file = None if file is None else _position_file(file, after)
        self._position = Position(seq=after) if self._file is None else self._file.read()

    @property
    def seq(self) -> int:
        """Number of the last entry delivered."""
        return self._position.seq

    def follow(self, entries: Iterable[AuditEntry]) -> Iterator[AuditEntry]:
        """Yield the entries that continue those delivered; raises `ConfigError` where another log does not."""
        digest = self._position.digest
        for entry in entries:
            if digest is not None and entry.previous != digest:
                raise ConfigError(
                    f"entry {entry.seq} does not continue entry {self._position.seq} of the cursor; this is another "
                    "log, or one that was changed. Verify it, then begin with another cursor file",
                    param="cursor",
                )
            digest = entry.digest
            yield entry

    def advance(self, entry: AuditEntry) -> None:
        """Keep that all entries up to this one have been delivered."""
        self._position = Position(seq=entry.seq, digest=entry.digest)
        if self._file is not None:
            self._file.write(self._position)


class Position(BaseModel):
    """The last entry delivered."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    seq: int = Field(ge=0)
    digest: str | None = None
    """None: not known, for a delivery that began in the middle."""


def _position_file(file: Path, after: int) -> JsonFile[Position]:
    return JsonFile(file, TypeAdapter(Position), absent=Position(seq=after), param="cursor")


def deliver(
    entries: Iterable[AuditEntry], cursor: Cursor, to: Destination, skipped: frozenset[str] = frozenset()
) -> int:
    """Deliver entries in batches and return their number; the cursor advances behind each batch.

    `skipped`: actions that are passed over. Raises `DeliveryFailed`; what was delivered before stays counted.
    """
    number, following = 0, cursor.follow(entries)
    while batch := list(islice(following, BATCH)):
        wanted = [entry for entry in batch if entry.action not in skipped]
        if wanted:
            to.deliver(wanted)
        cursor.advance(batch[-1])
        number += len(wanted)
    return number
