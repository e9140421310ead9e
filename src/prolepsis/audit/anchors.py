"""Anchors: signed ends of the chains, written at intervals to places outside the store."""

import asyncio
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from hashlib import sha256
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import httpx
import structlog
from prometheus_client import CollectorRegistry

from prolepsis.audit import chain
from prolepsis.audit.signing import SignedHead
from prolepsis.core.errors import ConfigError, StoreUnavailable
from prolepsis.store.database import Database
from prolepsis.telemetry.declare import counter, gauge
from prolepsis.web.feature import Feature

AUTO, LOG, NONE = "auto", "log", "none"
WEBHOOK_TIMEOUT_S = 10.0
_FIELDS = tuple(field.name for field in fields(SignedHead))

log = structlog.get_logger(__name__)


class AnchorPlace(Protocol):
    """A second place for signed heads."""

    name: str
    """For logs and metrics, without secrets."""

    def keep(self, head: SignedHead) -> None:
        """Write a head durably; raises `OSError` or `httpx.HTTPError`."""

    def last(self) -> SignedHead | None:
        """Return the last head, None if the place cannot be read or has none."""


class AnchorFile:
    """A file with one head a line (JSON)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = str(path)

    def keep(self, head: SignedHead) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, f"{json.dumps(head.plain())}\n".encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def last(self) -> SignedHead | None:
        try:
            with self.path.open(encoding="utf-8") as lines:
                return max(read_anchors(lines, self.name), key=lambda head: head.seq, default=None)
        except (OSError, UnicodeDecodeError, ConfigError):  # `prolepsis audit verify` says what is wrong with it
            return None


class AnchorLog:
    """The server's log: one line `audit_anchor`."""

    name = LOG

    def keep(self, head: SignedHead) -> None:
        log.info("audit_anchor", **head.plain())

    def last(self) -> None:
        return None


class AnchorWebhook:
    """A URL that gets each head as a POST with JSON, and replies with a status below 400."""

    def __init__(self, url: str) -> None:
        self.name = urlsplit(url).hostname or "webhook"
        self._url = url

    def keep(self, head: SignedHead) -> None:
        httpx.post(self._url, json=head.plain(), timeout=WEBHOOK_TIMEOUT_S).raise_for_status()

    def last(self) -> None:
        return None


def places(settings: Sequence[str], default: Path) -> list[AnchorPlace]:
    """Return the places that `audit_anchor` names; `default` is the file of auto. Raises `ConfigError`."""
    return [_place(setting, default) for setting in settings if setting != NONE]


def _place(setting: str, default: Path) -> AnchorPlace:
    if setting == LOG:
        return AnchorLog()
    if setting == AUTO:
        return AnchorFile(default)
    scheme = urlsplit(setting).scheme
    if scheme in ("http", "https"):
        return AnchorWebhook(setting)
    if scheme or not setting:
        message = f"audit_anchor is {setting[:80]!r}; allowed: auto, log, none, a file, http:// or https://"
        raise ConfigError(message, param="audit_anchor")
    return AnchorFile(Path(setting))


def default_file(key: Path, database: Database) -> Path:
    """Return the file of anchors beside the audit key: one for each store."""
    return key.with_name(f"audit-anchors-{sha256(database.name.encode()).hexdigest()[:12]}.jsonl")


def read_anchors(lines: Iterable[str], name: str) -> Iterator[SignedHead]:
    """Yield the heads of lines of JSON; other lines of a log are skipped. Raises `ConfigError` for a damaged one."""
    for number, line in enumerate(lines, 1):
        try:
            values = json.loads(line)
            if isinstance(values, dict) and "signature" in values:
                yield SignedHead(**{field: values[field] for field in _FIELDS})
        except (ValueError, KeyError):
            raise ConfigError(
                f"line {number} of {name} is no anchor as the server writes it", param="anchors"
            ) from None


class AnchorFeature(Feature):
    """Writes the present head to each place, if it is new there, and looks for the last one in the chain."""

    name = "audit_anchors"

    def __init__(
        self, database: Database, places: Sequence[AnchorPlace], registry: CollectorRegistry, *, period_s: float
    ) -> None:
        self.period_s = period_s
        self._database = database
        self._kept = {place.name: head for place in places if (head := place.last()) is not None}
        """The last head by place."""
        self._places = places
        self._failures = counter(registry, "audit_anchor_failures", "Anchors that a place did not take", "place")
        self._anchored = gauge(registry, "audit_anchored_entries", "Entries up to the last anchor", "place")
        self._broken = gauge(registry, "audit_chain_broken", "1 if the chain no longer has the entry of an anchor")

    async def tick(self) -> None:
        """Write anchors off the event loop; an unavailable store is the writer's to report."""
        try:
            await asyncio.to_thread(self._anchor)
        except StoreUnavailable:
            return

    async def close(self) -> None:
        await self.tick()

    def _anchor(self) -> None:
        with self._database.read() as connection:
            head = chain.signed_head(connection)
            lost = [kept for kept in self._kept.values() if chain.digest_at(connection, kept.seq) != kept.digest]
        self._broken.set(bool(lost))
        for kept in lost:
            log.error("audit_chain_broken", seq=kept.seq, digest=kept.digest)
        for place in self._places:
            if head is not None and self._kept.get(place.name) != head:
                self._keep(place, head)

    def _keep(self, place: AnchorPlace, head: SignedHead) -> None:
        try:
            place.keep(head)
        except (OSError, httpx.HTTPError) as error:  # tried again at the next tick
            self._failures.labels(place.name).inc()
            log.error("audit_not_anchored", place=place.name, error=type(error).__name__)
            return
        self._kept[place.name] = head
        self._anchored.labels(place.name).set(head.seq)
