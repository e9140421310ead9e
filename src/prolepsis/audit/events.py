"""What a server does that belongs into the audit log, and the store it is written to."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Literal

from prolepsis import __version__
from prolepsis.audit.entry import AuditEntry
from prolepsis.core.audit_event import AuditEvent
from prolepsis.core.config import EngineConfig, ServerConfig
from prolepsis.correctness.mismatch import Found
from prolepsis.cost.prices import PriceBook
from prolepsis.engine.client import EngineInfo
from prolepsis.policy.model import Policy
from prolepsis.rollout.machine import RolloutEvent
from prolepsis.safety.drift import DriftAlarm
from prolepsis.store.store import Store, open_store
from prolepsis.store.writer import WriterSettings
from prolepsis.telemetry.metrics import Metrics

_ACTOR = "server"
_DAY_S = 86400.0


@contextmanager
def opened_store(config: ServerConfig, metrics: Metrics) -> Iterator[Store | None]:
    """Hold the store that the configuration names, None for none; raises `ConfigError` where it cannot be used."""
    retention_s = _DAY_S * config.store_retention_days or None
    store = open_store(config.store, metrics.store, WriterSettings(retention_s=retention_s))
    try:
        yield store
    finally:
        if store is not None:
            store.close()


class Acts:
    """Hands acts to the store's writer, without waiting for it; without a store they are not kept."""

    def __init__(self, store: Store | None = None) -> None:
        self._writer = store.writer if store else None

    def started(self, info: EngineInfo, engine: EngineConfig, server: ServerConfig) -> None:
        """Say what serves, and with what configuration."""
        after = {"engine": engine.model_dump(mode="json"), "server": server.model_dump(mode="json")}
        versions = {"prolepsis": __version__, "model": info.model, "fingerprint": info.fingerprint}
        self.emit(AuditEvent(actor=_ACTOR, action="server.started", after=after, versions=versions))

    def stopped(self) -> None:
        self.emit(AuditEvent(actor=_ACTOR, action="server.stopped"))

    def policy_changed(
        self, what: Literal["loaded", "reloaded"], source: str, before: Policy | None, after: Policy | None
    ) -> None:
        """Say what was in effect and what is now, None for no policy."""
        act = AuditEvent(
            actor=_ACTOR,
            action=f"policy.{what}",
            subject=source,
            before=before.content() if before else None,
            after=after.content() if after else None,
            versions={"policy": after.full_version if after else ""},
        )
        self.emit(act)

    def prices_changed(self, what: str, file: Path, before: object, after: PriceBook) -> None:
        """Say which prices are in effect, and which were."""
        versions = {"prices": after.full_version}
        act = AuditEvent(
            actor=_ACTOR,
            action=f"prices.{what}",
            subject=str(file),
            before=before,
            after=after.content(),
            versions=versions,
        )
        self.emit(act)

    def rollout_changed(self, event: RolloutEvent) -> None:
        """Say what became of a rollout, and by what numbers; the reason names who did it by hand."""
        told = json.loads(event.to_json())
        versions = {"policy": event.plan_version}
        act = AuditEvent(
            actor=_ACTOR, action=f"rollout.{event.kind}", subject=event.rollout_id, after=told, versions=versions
        )
        self.emit(act)

    def replay_differed(self, found: Found, info: EngineInfo) -> None:
        """Say which request had tokens that its target would not have emitted, and where; without any token."""
        versions = {"prolepsis": __version__, "model": info.model, "fingerprint": info.fingerprint}
        told = {name: value for name, value in asdict(found).items() if name not in ("tenant", "request_id")}
        act = AuditEvent(
            actor=_ACTOR,
            action=f"replay.{found.kind}",
            subject=found.request_id,
            after={**told, "exactness": info.exactness, "draft_head": info.draft_head},
            tenant=found.tenant,
            versions=versions | ({"policy": found.policy_version} if found.policy_version else {}),
        )
        self.emit(act)

    def replayed_by_hand(self, by: str, entry: AuditEntry, outcome: str) -> None:
        """Say who had a recorded request decoded again, and what that showed."""
        told = entry.told
        assert told is not None, "what is erased cannot be decoded again"
        after = {"entry": entry.seq, "outcome": outcome}
        act = AuditEvent(actor=by, action="request.replayed", subject=told.subject, after=after, tenant=told.tenant)
        self.emit(act)

    def drift_noticed(self, alarm: DriftAlarm) -> None:
        """Say which proposer fares otherwise than it did, and by what numbers."""
        versions = {"proposer": alarm.version}
        subject = f"{alarm.proposer} {alarm.traffic_class}"
        self.emit(
            AuditEvent(
                actor=_ACTOR, action=f"drift.{alarm.kind}", subject=subject, after=asdict(alarm), versions=versions
            )
        )

    def drift_reset(self, by: str, proposer: str, traffic_class: str, before: object) -> None:
        """Say who had drift of one proposer watched anew, and what was known of it."""
        self.emit(AuditEvent(actor=by, action="drift.reset", subject=f"{proposer} {traffic_class}", before=before))

    def kill_turned(self, by: str, before: object, after: object, *, on: bool) -> None:
        """Say who turned the kill switch, and why."""
        self.emit(AuditEvent(actor=by, action=f"kill.{'on' if on else 'off'}", before=before, after=after))

    def emit(self, act: AuditEvent) -> None:
        """Hand it to the writer."""
        if self._writer is not None:
            self._writer.offer(act)
