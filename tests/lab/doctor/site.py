"""A server, Prometheus and runbooks that reply what a test wants, and a machine, all of which pass every check."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from prolepsis import __version__
from prolepsis.control.audit.entry import AuditEntry, Details
from prolepsis.core.config import DAY_S, EngineConfig, ServerConfig
from prolepsis.lab.doctor.checks import Facts
from prolepsis.ops.monitoring.files import alert_groups
from prolepsis.server.front.key_file import KeyFile, new_key
from tests.loopback import Reply, Request, serving

KEY = "the key"
PAGES = ("/v1/models", "/console")
SETTINGS: dict[str, object] = {
    "port": 8000,
    "request_timeout_s": 300.0,
    "tokens_per_minute": {"tenant": 10_000},
    "audit_anchor": ("log",),
    "grafana_url": "https://grafana.example",
    "alertmanager": "http://alertmanager.example",
}


def replica(**changes: object) -> dict[str, object]:
    usual: dict[str, object] = {"here": False, "state": "ready", "version": __version__, "exact_group": "a1"}
    return usual | {"address": "http://10.0.0.7:8000"} | changes


def rule(**changes: object) -> dict[str, object]:
    rollout = {"holdout": 5.0}
    return {"name": "chat", "mode": "on", "guardrails": [{"name": "cost"}], "rollout": rollout} | changes


@dataclass
class Site:
    """Tests change its fields before they ask for `facts`."""

    folder: Path
    url: str = ""
    asks_for_keys: bool = True
    days_ago: dict[str, float] = field(default_factory=dict)
    """Of acts, by action."""
    settings: dict[str, Any] = field(
        default_factory=lambda: ServerConfig.model_validate(SETTINGS).model_dump(mode="json")
    )
    engine: dict[str, Any] = field(default_factory=lambda: EngineConfig().model_dump(mode="json"))
    machine: dict[str, Any] = field(default_factory=dict)
    replies: dict[str, Any] = field(default_factory=dict)
    """JSON by path; a number is a status."""
    ahead_s: float = 0.0
    """Seconds by which the server's clock is ahead of the machine's."""
    backup: Path | None = None
    names_server: bool = True
    names_prometheus: bool = True

    def facts(self) -> Facts:
        return Facts(
            url=self.url if self.names_server else None,
            key=KEY,
            prometheus_url=f"{self.url}/prometheus" if self.names_prometheus else None,
            backup=self.backup,
            machine=self.machine,
            now=lambda: time.time() - self.ahead_s,
        )

    def answer(self, request: Request) -> Reply:
        parts = urlsplit(request.path)
        if parts.path in PAGES:
            return Reply(401 if self.asks_for_keys else 200)
        if parts.path.startswith("/runbooks/"):
            return Reply(self.replies[parts.path])
        if parts.path == "/admin/audit" and parts.path not in self.replies:
            found = self._entries(parse_qs(parts.query)["action"][0])
            return _json({"head": "0:0", "signed_head": None, "entries": found})
        reply = self.replies[parts.path]
        return Reply(reply, b"{}") if isinstance(reply, int) else _json(reply)

    def _entries(self, action: str) -> list[dict[str, object]]:
        if action not in self.days_ago:
            return []
        after = {"engine": self.engine, "server": self.settings} if action == "server.started" else None
        at = datetime.fromtimestamp(time.time() - self.days_ago[action] * DAY_S, UTC).isoformat()
        details = Details(actor="server", tenant="", subject="", before=None, after=after, salt="")
        entry = AuditEntry(
            seq=1,
            uid="1",
            at=at,
            action=action,
            versions={},
            erases=(),
            details=details,
            details_digest="",
            previous="",
            digest="",
        )
        return [entry.plain()]


def _json(value: object) -> Reply:
    return Reply(200, json.dumps(value).encode(), {"content-type": "application/json"})


def _replies(url: str) -> dict[str, Any]:
    head = {"name": "mine", "version": 2, "misfit": None, "slot": "draft_head"}
    groups: Any = alert_groups()
    alerts = [
        {"name": one["alert"], "labels": {}, "annotations": {"runbook_url": f"{url}/runbooks/latency"}}
        for group in groups
        for one in group["rules"]
        if "alert" in one
    ]
    burning = {"name": "slo:period_error_budget_remaining:ratio", "labels": {"sloth_slo": "availability"}}
    store = {"ok": True, "num_queued": 0, "written": {}, "dropped": {}}
    ready = {"ready": True, "detail": "", "store": store, "exactness": "strict", "exactness_reason": "one order"}
    outcomes = {"match": 9, "near_tie": 0, "structural": 0, "failed": 0}
    return {
        "/health/live": {"live": True, "detail": ""},
        "/health/ready": ready,
        "/health/deep": {"healthy": True, "detail": "8 tokens were generated", "ms": 4.0},
        "/admin/replicas": {"replicas": [replica(here=True), replica()]},
        "/admin/health": {"correctness": {"match_rate": 1.0, "outcomes": outcomes}},
        "/admin/heads": {"draft_head": "mine@2", "candidate_head": None, "heads": [head]},
        "/admin/kill": {"killed": [], "fault": None},
        "/admin/policy": {"content": {"default": {"mode": "off"}, "rules": [rule()]}},
        "/tokenizer_info": {"chat_template": "roles and text"},
        "/prometheus/api/v1/rules": {"data": {"groups": [{"rules": [*alerts, burning]}]}},
        "/runbooks/latency": 303,
    }


@contextmanager
def good_site(folder: Path) -> Iterator[Site]:
    """Give a site that passes; its environment has to be `environment`."""
    for name in ("profiles", "self-checks"):
        (folder / "cache" / name).mkdir(parents=True)
        (folder / "cache" / name / "1.json").touch()
    (folder / "backup.sqlite").touch()
    KeyFile(folder / "keys.json").add(new_key("acme", roles=("client",))[0])
    site = Site(folder, backup=folder / "backup.sqlite")
    site.days_ago = dict.fromkeys(("server.started", "kill.on", "drill.run", "exact.passed", "rehearsal.checked"), 3.0)
    site.machine = {"kernels": (True, "for avx2"), "free_memory": 2**33, "free_disk": 2**40, "open_files": 65_536}
    with serving(site.answer) as site.url:
        site.replies = _replies(site.url)
        yield site


def environment(folder: Path) -> dict[str, str]:
    return {
        "PROLEPSIS_CACHE": str(folder / "cache"),
        "PROLEPSIS_DATA": str(folder),
        "PROLEPSIS_KEYS_FILE": str(folder / "keys.json"),
    }


def age(file: Path, days: float) -> None:
    """Let a file look as if it was changed so many days ago."""
    changed = time.time() - days * DAY_S
    os.utime(file, (changed, changed))
