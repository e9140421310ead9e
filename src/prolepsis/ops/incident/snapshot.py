"""The snapshot: one archive of redacted files, its index first."""

import io
import json
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from prolepsis import __version__
from prolepsis.core.audit_event import AuditEvent
from prolepsis.core.errors import ProlepsisError
from prolepsis.ops.incident.period import Period
from prolepsis.ops.incident.redactor import Redactor
from prolepsis.ops.incident.timeline import document

INDEX = "index.md"


@dataclass(frozen=True, slots=True)
class Source:
    """A file of the archive, and where its content comes from."""

    file: str
    about: str
    read: Callable[[], object]  # returns text, or plain JSON values; raises if the source cannot be read


@dataclass(frozen=True, slots=True)
class SnapshotPart:
    """A source that was read, or why not."""

    source: Source
    content: object
    missing: str = ""


def read_part(source: Source) -> SnapshotPart:
    """Read a source; one that cannot be read is missing with the reason."""
    try:
        return SnapshotPart(source, source.read())
    except ProlepsisError as error:
        return SnapshotPart(source, None, " ".join(str(error).split()))
    except Exception as error:  # one source that is broken must not cost the others
        return SnapshotPart(source, None, f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")


def archive(parts: Sequence[SnapshotPart], period: Period, made_at: datetime) -> bytes:
    """Return the archive (tar.gz) of the redacted parts."""
    out = Redactor()
    for part in parts:
        out.learn(part.content)
    files = {part.source.file: _written(part, out) for part in parts if not part.missing}
    index = document(
        "index.md",
        here=[part for part in parts if not part.missing],
        absent=[part for part in parts if part.missing],
        sizes={name: len(content) for name, content in files.items()},
        redacted=out.text,
        period=period,
        made_at=f"{made_at:%Y-%m-%d %H:%M:%S}",
        version=__version__,
    )
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, content in {INDEX: index.encode(), **files}.items():
            entry = tarfile.TarInfo(f"incident/{name}")
            entry.size, entry.mode, entry.mtime = len(content), 0o600, int(made_at.timestamp())
            tar.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def made(parts: Sequence[SnapshotPart], period: Period, actor: str) -> AuditEvent:
    """Return the event of handing out a snapshot."""
    after = {
        "from": period.start.isoformat(timespec="seconds"),
        "to": period.end.isoformat(timespec="seconds"),
        "files": [part.source.file for part in parts if not part.missing],
        "missing": [part.source.file for part in parts if part.missing],
    }
    return AuditEvent(actor=actor, action="incident.snapshot", after=after)


def _written(part: SnapshotPart, out: Redactor) -> bytes:
    if not isinstance(part.content, str):
        return json.dumps(out.value(part.content), indent=1, ensure_ascii=False).encode() + b"\n"
    if part.source.file == "metrics.txt":
        return out.metrics(part.content).encode()
    return (out.log(part.content) if part.source.file.startswith("log") else out.text(part.content)).encode()
