"""What checks look at: this machine, settings, a server with its audit log, and Prometheus."""

import resource
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from prolepsis.control.audit.commands.log import opened_log
from prolepsis.control.audit.entry import AuditEntry
from prolepsis.core.errors import ConfigError
from prolepsis.core.files import data_directory
from prolepsis.core.terminal.flags import settings_here
from prolepsis.engine.kv.machine import host_memory
from prolepsis.engine.native.build import compiler_missing
from prolepsis.engine.native.processor import describe_missing, instruction_sets, processor_flags
from prolepsis.ops.incident.sources import Server


def known(value: Any, reason: str) -> Any:
    """Return a value; raises `ConfigError` with the reason where there is none."""
    if value is None:
        raise ConfigError(reason)
    return value


def this_machine() -> Mapping[str, Any]:
    """Return facts of this machine by name; memory and disk in bytes."""
    folder = next(one for one in (data_directory(), *data_directory().parents) if one.exists())
    kernels = [one.name for one in instruction_sets(processor_flags())]
    missing = compiler_missing() if kernels else describe_missing()
    return {
        "kernels": (missing is None, missing or kernels[0]),
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
        return Server(known(self.url, "no server is named: --server URL"), self.key)

    @cached_property
    def alerts(self) -> Sequence[Mapping[str, Any]]:
        """The rules of alerts that Prometheus has loaded."""
        prometheus = Server(known(self.prometheus_url, "no Prometheus is named: --prometheus URL"), None)
        groups = prometheus.document("/api/v1/rules?type=alert")["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]

    @cached_property
    def settings(self) -> Mapping[str, Any]:
        """Those of the server's last start, by its audit log; without a server those of this machine."""
        if self.url is None:
            parts = [part.model_dump(mode="json") for part in settings_here().sections()]
        else:
            [here] = [one for one in self.server.document("/admin/replicas")["replicas"] if one["here"]]
            starts: list[Any] = [entry.details.after for entry in self.acts("server.started", 20) if entry.details]
            mine = [one for one in starts if one["server"]["port"] == urlsplit(here["address"]).port]
            last = known(mine[-1] if mine else None, "the audit log has no start of this server, with its settings")
            parts = [last["engine"], last["server"]]
        return {name: value for part in (*parts, parts[1]["limits"]) for name, value in part.items()}

    def acts(self, action: str, number: int = 1) -> Sequence[AuditEntry]:
        """Return the newest entries of an action: of the server's audit log, without a server of the store's."""
        with opened_log(None, self.url, self.key) as log:
            return log.newest(number, action=action, tenant=None)
