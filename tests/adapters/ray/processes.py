"""The processes of replicas on this machine."""

import re
from pathlib import Path

_TITLE = re.compile(rb"ray::ServeReplica:[^:]+:engine")
"""Of a replica: application and deployment; front ends are in another one."""


def replica_processes() -> list[int]:
    """Return their ids; a process has its name before its engine is there."""
    found: list[int] = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
        except OSError:  # it has ended meanwhile
            continue
        if _TITLE.match(command):
            found.append(int(folder.name))
    return found
