"""Sources of a snapshot: the admin routes of a running server, and the lines of its log."""

import json
import os
import re
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import httpx2

from prolepsis.core.errors import ConfigError
from prolepsis.core.terminal.admin import NoServer, ask
from prolepsis.ops.incident.period import Period

_TIMEOUT_S = 10.0

PARTS = {
    "health.json": ("/health/ready", "whether the engine is ready"),
    "traffic.json": ("/admin/traffic", "acceptance, savings and modes by traffic class, the last hour"),
    "alerts.json": ("/admin/alerts", "alerts that fire, by the Alertmanager that the server asks"),
    "slowest.json": ("/admin/requests?order=slowest&last=50", "the slowest of the last requests, with rounds"),
    "newest.json": ("/admin/requests?order=newest&last=100", "the last requests"),
    "kill.json": ("/admin/kill", "the kill switch and its sources"),
    "flags.json": ("/admin/flags", "flags that operators set"),
    "judges.json": ("/admin/health", "breakers, drift, eligibility, replays, delivery and what is skipped"),
    "verdicts.json": ("/admin/verdicts", "the verdict on each rule, and what it rests on"),
    "heads.json": ("/admin/heads", "draft heads installed and in use"),
    "rollouts.json": ("/admin/rollouts", "rollouts with what is judged of their stages"),
    "policy.json": ("/admin/policy", "the policy in use"),
    "replicas.json": ("/admin/replicas", "servers that share the store, and their engines"),
    "cost.json": ("/admin/cost", "device seconds, money and savings"),
}
"""Files of a snapshot: the path that each comes from, and what it is."""


class Server:
    """A running server; after one request without an answer it is not asked again."""

    def __init__(self, url: str, key: str | None) -> None:
        self._ask = partial(ask, url, key, "GET", timeout_s=_TIMEOUT_S)
        self._fault: NoServer | None = None

    def document(self, path: str, read: Callable[[httpx2.Response], Any] = httpx2.Response.json) -> Any:
        """Return the JSON of a reply; raises `NoServer` without an answer, `InvalidParameter` for a refusal."""
        if self._fault is not None:
            raise self._fault
        try:
            return self._ask(path, read=read, also=503 if path.startswith("/health") else 200)
        except NoServer as error:
            if isinstance(error.__context__, httpx2.TransportError):  # not what is no JSON
                self._fault = error
            raise

    def text(self, path: str) -> str:
        """Return the text of a reply; raises as `document` does."""
        return str(self.document(path, lambda reply: reply.text))


MOST_READ = 16 << 20  # bytes at the end of a file that are looked at
MOST_KEPT = 512 << 10  # characters at the end of the period that are kept: redaction takes time
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
    match = _TIME.match(line)
    if match is None:
        return None
    try:
        time = datetime.fromisoformat(match[0])
    except ValueError:
        return None
    return time if time.tzinfo else time.replace(tzinfo=UTC)
