"""Anchors: signed ends of the chains, written at intervals to places outside the store."""

import asyncio
import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from operator import attrgetter
from pathlib import Path
from typing import get_args

import httpx2
import structlog
from prometheus_client import CollectorRegistry
from pydantic import TypeAdapter

from prolepsis.control.store.database import Database
from prolepsis.control.store.links import digest_at, signed_head
from prolepsis.control.store.signing import ChainName, SignedHead
from prolepsis.control.store.turns import PeriodicWork
from prolepsis.control.web.feature import Feature
from prolepsis.core.bounded_replies import post
from prolepsis.core.errors import ConfigError, StoreUnavailable
from prolepsis.core.network import HTTP, address, scheme_of, without_user
from prolepsis.core.telemetry.declare import counter, gauge

AUTO, LOG, NONE = "auto", "log", "none"
_HEAD = TypeAdapter(SignedHead)
_TORN_SHOWN = 10
_TURN = 0.9
"""Share of the period after which a turn may be taken: a replica whose clock is slightly early is not skipped."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class AnchorPlace:
    """A second place for signed heads."""

    name: str  # for logs and metrics, without secrets
    keep: Callable[[SignedHead], object]  # writes a head durably; raises `OSError` or `httpx2.HTTPError`
    path: Path | None = None  # of a file, whose last heads are looked for in the chains
    turn: str | None = None
    """The turn that a replica takes to write, if all replicas write to one place; None: each writes to its own."""


def places(settings: Sequence[str], default: Path) -> list[AnchorPlace]:
    """Return the places that `audit_anchor` names; `default` is the file of auto. Raises `ConfigError`."""
    return [_place(setting, default) for setting in settings if setting != NONE]


def _place(setting: str, default: Path) -> AnchorPlace:
    scheme = scheme_of(setting)
    if setting == LOG:
        return AnchorPlace(LOG, lambda head: log.info("audit_anchor", **head.plain()))
    if scheme in HTTP:
        parts = address(setting)
        if parts is None or parts.hostname is None:
            shown = without_user(setting.partition("://")[2]).partition("/")[0][:80]
            allowed = "http(s)://HOST or HOST:PORT with a port of 1 to 65535"
            raise ConfigError(f"audit_anchor has the address {shown!r}; allowed: {allowed}", param="audit_anchor")
        turn = f"anchor {sha256(setting.encode()).hexdigest()[:16]}"
        return AnchorPlace(parts.hostname, lambda head: post(setting, head.plain()), turn=turn)
    if scheme or not setting:
        message = f"audit_anchor is {setting[:80]!r}; allowed: auto, log, none, a file, http:// or https://"
        raise ConfigError(message, param="audit_anchor")
    path = default if setting == AUTO else Path(setting)
    return AnchorPlace(str(path), partial(_add_line, path), path)


def _add_line(path: Path, head: SignedHead) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        is_torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"  # the new line must not be lost with it
        os.write(descriptor, b"\n" * is_torn + f"{json.dumps(head.plain())}\n".encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def default_file(key: Path, database: Database) -> Path:
    """Return the file of anchors next to the audit key: one for each store."""
    return key.with_name(f"audit-anchors-{sha256(database.name.encode()).hexdigest()[:12]}.jsonl")


@dataclass(frozen=True, slots=True)
class AnchorsRead:
    heads: Sequence[SignedHead]
    torn: Sequence[int]
    """Numbers of the lines that are not complete anchors, for example because the writer was killed."""


def read_anchors(path: Path) -> AnchorsRead:
    """Return the heads in a file of lines of JSON, which may be a log with other lines; raises `OSError`."""
    heads: list[SignedHead] = []
    torn: list[int] = []
    with path.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                values = json.loads(line)
                if isinstance(values, dict) and "signature" in values:
                    heads.append(_HEAD.validate_python(values))
            except (ValueError, RecursionError):
                torn.append(number)
    return AnchorsRead(heads, torn)


def _last_heads(path: Path | None) -> Sequence[SignedHead]:
    """Return the last head of each chain in a file, none of one that cannot be read."""
    try:
        anchors = read_anchors(path) if path is not None else AnchorsRead([], [])
    except OSError:  # `prolepsis audit verify` says what is wrong with it
        return []
    if anchors.torn:
        log.warning("audit_anchors_torn", file=str(path), lines=anchors.torn[:_TORN_SHOWN], number=len(anchors.torn))
    return [*{head.chain: head for head in sorted(anchors.heads, key=attrgetter("seq"))}.values()]


class AnchorFeature(Feature):
    """Writes the present head to each place, if it is new there, and looks for the last one in the chain."""

    name = "audit_anchors"

    def __init__(
        self, database: Database, places: Sequence[AnchorPlace], registry: CollectorRegistry, *, period_s: float
    ) -> None:
        self.period_s: float = period_s
        self._database = database
        self._periodic_work = PeriodicWork(database)
        self._kept = {(place, head.chain): head for place in places for head in _last_heads(place.path)}
        """The last head by place and chain."""
        self._lost: set[SignedHead] = set()
        """Heads that the chain no longer had; later anchors do not bring them back."""
        self._places = places
        self._failures = counter(registry, "audit_anchor_failures", "Anchors that a place did not take", "place")
        for place in places:
            self._failures.labels(place.name)  # an alert on a rise needs the 0 before it
        self._anchored = gauge(registry, "audit_anchored_entries", "Entries up to the last anchor", "place", "chain")
        self._broken = gauge(registry, "audit_chain_broken", "1 from when the chain lacks the entry of an anchor")

    async def tick(self) -> None:
        """Write anchors off the event loop; an unavailable store is the writer's to report."""
        with suppress(StoreUnavailable):
            await asyncio.to_thread(self._anchor, is_last=False)

    async def close(self) -> None:
        """Write the last anchors of this server, also where it is another's turn."""
        with suppress(StoreUnavailable):
            await asyncio.to_thread(self._anchor, is_last=True)

    def _anchor(self, *, is_last: bool) -> None:
        with self._database.read() as connection:
            ends = [signed_head(connection, chain) for chain in get_args(ChainName)]
            heads = [head for head in ends if head is not None]
            kept = self._kept.values()
            lost = {head for head in kept if digest_at(connection, head.seq, head.chain) != head.digest}
        for head in lost - self._lost:
            log.error("audit_chain_broken", chain=head.chain, seq=head.seq, digest=head.digest)
        self._lost |= lost
        self._broken.set(bool(self._lost))
        for place in self._places:
            before = {head.chain: (head.seq, head.digest) for (of, _), head in self._kept.items() if of == place}
            new = [head for head in heads if before.get(head.chain) != (head.seq, head.digest)]
            turn = None if is_last else place.turn
            if new and (turn is None or self._periodic_work.take(turn, _TURN * self.period_s)):
                for head in new:
                    self._keep(place, head)

    def _keep(self, place: AnchorPlace, head: SignedHead) -> None:
        try:
            place.keep(head)
        except (OSError, httpx2.HTTPError) as error:  # tried again at the next tick
            self._failures.labels(place.name).inc()
            log.error("audit_not_anchored", place=place.name, error=type(error).__name__)
            if place.turn is not None:
                self._periodic_work.give_back(place.turn)
            return
        self._kept[place, head.chain] = head
        self._anchored.labels(place.name, head.chain).set(head.seq)
