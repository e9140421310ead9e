"""The lines of a log that belong to a period."""

import json
import os
import re
from datetime import UTC, datetime
from pathlib import Path

from prolepsis.core.errors import ConfigError
from prolepsis.incident.period import Period

MOST_READ = 16 << 20
"""Bytes at the end of a file that are looked at."""
MOST_KEPT = 512 << 10
"""Characters at the end of the period that are kept: redaction takes time."""
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d{1,6})?(?:Z|[+-]\d\d:\d\d)?")


def lines_of(file: Path, period: Period) -> str:
    """Return the last lines of a period, from text or JSON lines; raises `ConfigError`.

    A line without a time, as in a traceback, belongs to the line before.
    """
    try:
        with file.open("rb") as log:
            log.seek(max(0, os.fstat(log.fileno()).st_size - MOST_READ))
            lines = log.read(MOST_READ).decode("utf-8", "replace").splitlines()
    except OSError as error:
        raise ConfigError(f"log {file} cannot be read: {error.strerror}", param="log") from None
    kept: list[str] = []
    is_in = False
    for line in lines:
        at = _time(line)
        is_in = is_in if at is None else period.start <= at < period.end
        if is_in:
            kept.append(line)
    text = "\n".join(kept)
    if len(text) > MOST_KEPT:
        text = f"(earlier lines of the period are left out)\n{text[-MOST_KEPT:].partition(chr(10))[2]}"
    return text + "\n" if text else ""


def _time(line: str) -> datetime | None:
    if line.startswith("{"):
        try:
            line = str(json.loads(line).get("timestamp", ""))
        except ValueError:
            return None
    found = _TIME.match(line)
    if found is None:
        return None
    try:
        time = datetime.fromisoformat(found[0])
    except ValueError:
        return None
    return time if time.tzinfo else time.replace(tzinfo=UTC)
