"""Delivery of audit entries to other systems: JSON lines and OTLP logs. Each entry arrives at least once."""

import json
import os
import ssl
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol

import httpx2
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from prolepsis.control.audit.entry import AuditEntry
from prolepsis.core.errors import ConfigError, DeliveryFailed
from prolepsis.core.extras import OTEL
from prolepsis.core.files import JsonFile, exclusive
from prolepsis.core.network import address, client_tls, scheme_of

if TYPE_CHECKING:
    from opentelemetry.proto.common.v1.common_pb2 import KeyValue
    from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

BATCH = 100  # entries of one delivery; after a failure at most so many arrive twice
TIMEOUT_S = 10.0
_ALLOWED = "a file, or http(s)://HOST:PORT/v1/logs (OTLP)"


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


class OtlpLogs:
    """An OTLP endpoint for logs over HTTP; the headers and certificates of OTEL_EXPORTER_OTLP_... hold.

    Needs the extra `otel`.
    """

    def __init__(self, url: str) -> None:
        OTEL.require("delivery by OTLP", param="output")
        from opentelemetry.util.re import parse_env_headers

        self._url = url
        headers = {**parse_env_headers(_setting("HEADERS"), liberal=True), "content-type": "application/x-protobuf"}
        self._client = httpx2.Client(headers=headers, timeout=TIMEOUT_S, verify=_tls())

    def deliver(self, entries: Sequence[AuditEntry]) -> None:
        try:
            reply = self._client.post(self._url, content=_request(entries))
        except httpx2.HTTPError as error:
            raise DeliveryFailed(f"{self._url}: {error}") from None
        if not reply.is_success:
            raise DeliveryFailed(f"{self._url} did not take {len(entries)} entries: status {reply.status_code}")
        if reply.headers.get("content-type") == "application/x-protobuf":
            from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse

            partial = ExportLogsServiceResponse.FromString(reply.content).partial_success
            if refused := partial.rejected_log_records:
                raise DeliveryFailed(f"{self._url} refused {refused} entries: {partial.error_message}")

    def close(self) -> None:
        self._client.close()


def _setting(name: str) -> str:
    """Return what OpenTelemetry's environment says for logs, "" for nothing."""
    general = os.environ.get(f"OTEL_EXPORTER_OTLP_{name}", "")
    return os.environ.get(f"OTEL_EXPORTER_OTLP_LOGS_{name}", general)


def _tls() -> ssl.SSLContext:
    authorities, own = _setting("CERTIFICATE"), _setting("CLIENT_CERTIFICATE")
    context = client_tls(Path(authorities), "output") if authorities else ssl.create_default_context()
    try:
        if own:
            context.load_cert_chain(own, _setting("CLIENT_KEY") or None)
    except OSError as error:
        raise ConfigError(f"TLS cannot be set up from {own}: {error}", param="output") from None
    return context


def _request(entries: Sequence[AuditEntry]) -> bytes:
    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
    from opentelemetry.proto.logs.v1.logs_pb2 import ResourceLogs, ScopeLogs
    from opentelemetry.proto.resource.v1.resource_pb2 import Resource
    from opentelemetry.sdk.resources import Resource as FromEnvironment

    attributes = FromEnvironment.create({"service.name": "prolepsis"}).attributes
    of = Resource(attributes=[_attribute(name, str(value)) for name, value in attributes.items()])
    logs = ScopeLogs(log_records=map(_log_record, entries))
    request = ExportLogsServiceRequest(resource_logs=[ResourceLogs(resource=of, scope_logs=[logs])])
    return bytes(request.SerializeToString())


def _attribute(name: str, value: str | int) -> "KeyValue":
    from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

    held = AnyValue(int_value=value) if isinstance(value, int) else AnyValue(string_value=value)
    return KeyValue(key=name, value=held)


def _log_record(entry: AuditEntry) -> "LogRecord":
    from opentelemetry.proto.common.v1.common_pb2 import AnyValue
    from opentelemetry.proto.logs.v1.logs_pb2 import SEVERITY_NUMBER_INFO, LogRecord

    at = int(datetime.fromisoformat(entry.at).timestamp() * 1e6) * 1000
    actor = entry.details.actor if entry.details else ""
    return LogRecord(
        time_unix_nano=at,
        observed_time_unix_nano=at,
        severity_number=SEVERITY_NUMBER_INFO,
        severity_text="INFO",
        body=AnyValue(string_value=json_line(entry)),
        attributes=[_attribute("prolepsis.audit.seq", entry.seq), _attribute("prolepsis.audit.actor", actor)],
        event_name=f"prolepsis.audit.{entry.action}",
    )


def destination(name: str, *, append: bool) -> Destination:
    """Open what `name` says: a file or an OTLP endpoint; raises `ConfigError`.

    `append`: a file keeps what it has.
    """
    if address(name) is not None:
        return OtlpLogs(name)
    if scheme_of(name) or not name:
        raise ConfigError(f"output is {name[:80]!r}; allowed: {_ALLOWED}", param="output")
    path = Path(name)

    def own(path: str, flags: int) -> int:
        """Open it for its owner only, as entries may hold texts; one that is continued stays as it is."""
        descriptor = os.open(path, flags, 0o600)
        if not append and stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.fchmod(descriptor, 0o600)
        return descriptor

    try:
        file = open(path, "a" if append else "w", encoding="utf-8", opener=own)  # noqa: SIM115  # JsonLines closes it
        if append and path.is_file() and path.stat().st_size:
            with path.open("rb") as written:
                written.seek(-1, os.SEEK_END)
                file.write("" if written.read() == b"\n" else "\n")  # after a line of a writer that was killed
        return JsonLines(file)
    except OSError as error:
        raise ConfigError(f"{name} cannot be written: {error.strerror}", param="output") from None


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
        begin, adapter = Position(seq=after), TypeAdapter(Position)
        self._file = None if file is None else JsonFile(file, adapter, absent=begin, param="cursor")
        self._position = begin if self._file is None else self._file.read()

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
    digest: str | None = None  # None: not known, for a delivery that began in the middle


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
