"""The checks: checks.md says what each looks at, why, and how to mend it; here is how each looks."""

import resource
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import cached_property
from importlib.resources import files
from math import inf
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2

from prolepsis.control.audit.commands.log import opened_log
from prolepsis.control.audit.entry import AuditEntry
from prolepsis.control.controls.commands.stop import status_here
from prolepsis.control.controls.file import ControlsFile
from prolepsis.core.config import DAY_S
from prolepsis.core.errors import ConfigError, ProlepsisError
from prolepsis.core.extras import not_installed
from prolepsis.core.files import cache_directory, data_directory
from prolepsis.core.terminal.documents import shown
from prolepsis.core.terminal.flags import settings_here
from prolepsis.core.units import duration, size
from prolepsis.engine.kv.machine import host_memory
from prolepsis.ops.incident.sources import Server
from prolepsis.ops.monitoring.files import alert_groups
from prolepsis.server.front.key_file import KeyFile, default_key_file
from prolepsis.server.front.listener import is_loopback
from prolepsis.server.sources import read_sources


def known(value: Any, reason: str) -> Any:
    """Return a value; raises `ConfigError` with the reason where there is none."""
    if value is None:
        raise ConfigError(reason)
    return value


def kernels() -> tuple[bool, str]:
    """Return whether native kernels run here, and which or why not; nothing is compiled."""
    try:
        from prolepsis.engine.native.choice import expected

        return True, expected().describe()
    except ImportError as error:
        return False, str(not_installed(error) or error)
    except (RuntimeError, ConfigError) as error:
        return False, str(error)


def this_machine() -> Mapping[str, Any]:
    """Return facts of this machine by name; memory and disk in bytes."""
    folder = next(ancestor for ancestor in (data_directory(), *data_directory().parents) if ancestor.exists())
    return {
        "kernels": kernels(),
        "free_memory": host_memory().free,
        "free_disk": shutil.disk_usage(folder).free,
        "open_files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    }


@dataclass(kw_only=True)
class Facts:
    """A fact is read when a check asks for it; an error then says why it is not known."""

    url: str | None = None
    key: str | None = None
    prometheus_url: str | None = None
    backup: Path | None = None
    machine: Mapping[str, Any] = field(default_factory=this_machine)
    now: Callable[[], float] = time.time

    @cached_property
    def server(self) -> Server:
        return Server(known(self.url, "no server is named: --url URL"), self.key)

    @cached_property
    def rules(self) -> Sequence[Mapping[str, Any]]:
        """The rules that Prometheus has loaded, of alerts and of what is recorded."""
        prometheus = Server(known(self.prometheus_url, "no Prometheus is named: --prometheus URL"), None)
        groups = prometheus.document("/api/v1/rules")["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]

    @cached_property
    def settings(self) -> Mapping[str, Any]:
        """Those of the server's last start, by its audit log; without a server those of this machine."""
        if self.url is None:
            settings = settings_here()
            read_sources(settings.server)
            parts = [part.model_dump(mode="json") for part in settings.sections()]
        else:
            [here] = [replica for replica in self.server.document("/admin/replicas")["replicas"] if replica["here"]]
            starts: list[Any] = [entry.details.after for entry in self.acts("server.started", 20) if entry.details]
            mine = [start for start in starts if start["server"]["port"] == urlsplit(here["address"]).port]
            last = known(mine[-1] if mine else None, "the audit log has no start of this server, with its settings")
            parts = [last["engine"], last["server"]]
        return {name: value for part in (*parts, parts[1]["limits"]) for name, value in part.items()}

    def acts(self, action: str, number: int = 1) -> Sequence[AuditEntry]:
        """Return the newest entries of an action: of the server's audit log, without a server of the store's."""
        with opened_log(None, self.url, self.key) as log:
            return log.newest(number, action=action, tenant=None)


Found = tuple[bool, str]
"""Whether a check passes, and what it saw."""
Test = Callable[[Facts], Found]
_NOT_ENOUGH: tuple[object, ...] = (None, 0, [], {}, "off", "none", "metrics_only", ["auto"], ["none"], "tokens")


@dataclass(frozen=True, slots=True)
class Check:
    """A row of checks.md. Settings and acts are tested by the names in `looks_at`, all else by `TESTS`."""

    id: str
    level: str
    looks_at: str
    what: str
    why: str
    fix: str

    def examined(self, facts: Facts) -> dict[str, str]:
        """Return the row with what was found; what cannot be told is unknown, with the reason."""
        kind, _, names = self.looks_at.partition(": ")
        try:
            passes, finding = (BY_NAME[kind](*names.split(", ")) if kind in BY_NAME else TESTS[self.id])(facts)
            state = "pass" if passes else "fail"
        except Exception as error:  # a source that fails, or replies as another version does, costs only its checks
            reason = str(error) if isinstance(error, ProlepsisError) else f"{type(error).__name__}: {error}"
            is_refused = self.id == "settings" and facts.url is None and isinstance(error, ProlepsisError)
            state, finding = "fail" if is_refused else "unknown", reason
        return {**asdict(self), "state": state, "finding": finding}


def all_checks() -> list[Check]:
    lines = (files(__package__) / "checks.md").read_text(encoding="utf-8").splitlines()
    return [Check(*line.strip("| ").split(" | ")) for line in lines[2:]]


def _none_of(what: str, present: Iterable[str]) -> Found:
    names = ", ".join(present)
    return not names, f"{what}: {names or 'none'}"


def _speculates(facts: Facts) -> Found:
    own, named = facts.settings, ("proposers", "synthetic", "draft_model", "early_exit_layer", "remote_proposer")
    if own["num_speculative_tokens"] == 0:
        return False, "num_speculative_tokens: 0"
    if own["draft_head"] == "none" and not any(own[name] for name in named):
        return False, "proposers: none, draft_head: none"
    content = facts.server.document("/admin/policy")["content"] or {"default": {"mode": "on"}, "rules": ()}
    modes = {rule["mode"] for rule in (content["default"], *content["rules"])}
    return modes != {"off"}, f"modes of the policy's default and rules: {', '.join(sorted(modes))}"


def _roles(_: Facts) -> Found:
    file = KeyFile(settings_here().server.keys_file or default_key_file())
    keys = known(file.read() or None, f"there are no keys in {file.path}")
    wide = (key.id for key in keys if "client" in key.roles and len(key.roles) > 1)
    return _none_of(f"{len(keys)} keys; of clients with further roles", wide)


def _recent(what: str, times: Iterable[float], facts: Facts, most_s: float = 90 * DAY_S) -> Found:
    age = facts.now() - max(times, default=-inf)
    return age <= most_s, f"time since {what}: {duration(age)}"


def _file(path: Path, facts: Facts, most_s: float = 90 * DAY_S) -> Found:
    times = (file.stat().st_mtime for file in (path, *path.rglob("*")) if file.is_file())
    return _recent(f"the last change in {path}", times, facts, most_s)


def _did(action: str) -> Test:
    return lambda facts: _recent(
        f"the last {action}", (datetime.fromisoformat(entry.at).timestamp() for entry in facts.acts(action)), facts
    )


def _on(*names: str) -> Test:
    def test(facts: Facts) -> Found:
        values = {name: facts.settings[name] for name in names}
        lacking = {name: value for name, value in values.items() if value in _NOT_ENOUGH}
        return not lacking, ", ".join(
            f"{name} is not set" if value in (None, [], {}) else f"{name}: {shown(name, value)}"
            for name, value in (lacking or values).items()
        )

    return test


def _said(path: str, read: Callable[[Any], Found]) -> Test:
    return lambda facts: read(facts.server.document(path))


def _closed(facts: Facts) -> Found:
    statuses = {path: httpx2.get(f"{facts.server.url}{path}").status_code for path in ("/v1/models", "/console")}
    finding = ", ".join(f"{path} replies with {status} without a key" for path, status in statuses.items())
    return all(300 <= status < 400 or status in (401, 403) for status in statuses.values()), finding


def _replays(reply: Any) -> Found:
    known(reply["match_rate"], "no request has been replayed since the start")
    return not reply["outcomes"]["structural"], f"replays: {shown('', reply['outcomes'])}"


def _misfits(reply: Any) -> Found:
    used = [head for head in reply["heads"] if head["slot"]]
    return _none_of(f"{len(used)} heads in use; misfits", (head["misfit"] for head in used if head["misfit"]))


def _rules(policy: Any) -> Found:
    content = known(policy["content"], "no policy is in use")
    on = [rule for rule in ({"name": "default", **content["default"]}, *content["rules"]) if rule["mode"] == "on"]
    bare = (rule["name"] for rule in on if not (rule["guardrails"] and (rule["rollout"] or {}).get("holdout")))
    return _none_of(f"of {len(on)} rules that speculate, those without", bare)


def _date(reply: httpx2.Response) -> str:
    return reply.headers["date"]


def _clock(facts: Facts) -> Found:
    there = parsedate_to_datetime(facts.server.document("/health/live", _date)).timestamp()
    return abs(there - facts.now()) <= 5, f"the clocks differ by {abs(there - facts.now()):.0f} s"


def _alike(reply: Any) -> Found:
    kinds = {f"{peer['version']} {peer['exact_group']}" for peer in reply["replicas"] if peer["state"] != "lost"}
    return len(kinds) == 1, f"version and exact group: {', '.join(sorted(kinds))}"


def _not_killed(facts: Facts) -> Found:
    if facts.url is not None:
        return _none_of("stopped", facts.server.document("/admin/kill")["killed"])
    return _none_of("stopped", status_here(ControlsFile(settings_here().server.controls_file).read()).killed)


def _alerts(facts: Facts) -> Found:
    groups: Any = alert_groups()
    shipped = {rule["alert"] for group in groups for rule in group["rules"] if "alert" in rule}
    return _none_of("not loaded", sorted(shipped - {rule["name"] for rule in facts.rules}))


def _runbooks(facts: Facts) -> Found:
    urls = {rule.get("annotations", {}).get("runbook_url", "") for rule in facts.rules} - {""}
    gone = sorted(url for url in urls if httpx2.get(url).status_code >= 400)
    return bool(urls) and not gone, f"of {len(urls)} runbooks, not found: {', '.join(gone) or 'none'}"


BY_NAME: Mapping[str, Callable[..., Test]] = {"settings": _on, "act": _did}
TESTS: Mapping[str, Test] = {
    "settings": lambda facts: (bool(facts.settings), "`prolepsis serve` starts with them"),
    "speculation": _speculates,
    "native-kernels": lambda facts: facts.machine["kernels"],
    "cost-curve": lambda facts: _file(cache_directory() / "profiles", facts),
    "self-check": lambda facts: _file(cache_directory() / "self-checks", facts),
    "memory": lambda facts: (facts.machine["free_memory"] >= 2**30, f"{size(facts.machine['free_memory'])} free"),
    "disk": lambda facts: (facts.machine["free_disk"] >= 5 * 2**30, f"{size(facts.machine['free_disk'])} free"),
    "open-files": lambda facts: (facts.machine["open_files"] >= 4096, f"{facts.machine['open_files']} at once"),
    "key-roles": _roles,
    "backup": lambda facts: _file(known(facts.backup, "no backup is named: --backup PATH"), facts, 1.5 * DAY_S),
    "ready": _said("/health/ready", lambda ready: (ready["ready"], ready["detail"] or "the engine is ready")),
    "deep": _said("/health/deep", lambda deep: (deep["healthy"], deep["detail"])),
    "keys": _closed,
    "tls": lambda facts: (
        bool(facts.settings["tls_certificate"]) or is_loopback(facts.settings["host"]) or "https:" in (facts.url or ""),
        f"host: {facts.settings['host']}, tls_certificate: {facts.settings['tls_certificate'] or 'none'}",
    ),
    "store": _said("/health/ready", lambda now: (bool(now["store"]) and now["store"]["ok"], shown("", now["store"]))),
    "exactness": _said("/health/ready", lambda ready: (ready["exactness"] == "strict", ready["exactness_reason"])),
    "replays-match": _said("/admin/health", lambda health: _replays(health["correctness"])),
    "head-fits": _said("/admin/heads", _misfits),
    "chat-template": _said("/tokenizer_info", lambda info: (bool(info["chat_template"]), "by /tokenizer_info")),
    "kill-off": _not_killed,
    "guardrails": _said("/admin/policy", _rules),
    "clock": _clock,
    "replicas": _said("/admin/replicas", _alike),
    "objectives": lambda facts: (
        any("sloth_slo" in rule.get("labels", ()) for rule in facts.rules),
        f"by the label sloth_slo, of {len(facts.rules)} rules",
    ),
    "alerts-loaded": _alerts,
    "runbooks": _runbooks,
}
