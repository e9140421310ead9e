"""The memory that this process may still take: of the machine, its cgroup, its own limits, or an accelerator."""

import os
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

CPU = "cpu"
THIS_MACHINE = "this machine"
CGROUP = "the cgroup of this process"
ADDRESS_SPACE = "the limit of this process's address space (ulimit -v)"
DATA = "the limit of this process's data (ulimit -d)"
_LIMITS = ((resource.RLIMIT_AS, "VmSize", ADDRESS_SPACE), (resource.RLIMIT_DATA, "VmData", DATA))


@dataclass(frozen=True, slots=True)
class FreeMemory:
    place: str
    free: int
    held: int


@dataclass(frozen=True, slots=True)
class _CgroupFiles:
    mount: str
    limit: str
    used: str
    reclaimable: str  # key in memory.stat of cache that is given up before anything is refused


_V1 = _CgroupFiles("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2 = _CgroupFiles("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file")


def memory_of(device: str) -> FreeMemory:
    """Return the memory of a device as torch names it, e.g. 'cpu', 'cuda:0'."""
    if device == CPU:
        return host_memory()
    import torch

    free, _ = torch.cuda.mem_get_info(device)
    return FreeMemory(device, free, torch.cuda.memory_reserved(device))


def host_memory(root: Path = Path("/")) -> FreeMemory:
    """Return the memory of the machine, or of the tightest cgroup or limit around this process if that has less.

    `root` stands for the root of the file system. Where it has no /proc/meminfo all memory counts as free.
    """
    available = _kib(root / "proc/meminfo", "MemAvailable")
    free, place = (
        available if available is not None else os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        THIS_MACHINE,
    )
    for in_cgroup in _cgroups_free(root):
        if in_cgroup < free:
            free, place = in_cgroup, CGROUP
    limited = limited_memory(root)
    if limited is not None and limited.free < free:
        free, place = limited.free, limited.place
    return FreeMemory(place, max(0, free), _kib(root / "proc/self/status", "RssAnon") or 0)


def limited_memory(root: Path = Path("/")) -> FreeMemory | None:
    """Return what the tightest limit of this process leaves; None if it has none, or what it uses is not known."""
    held = _kib(root / "proc/self/status", "RssAnon") or 0
    memories = [
        FreeMemory(place, max(0, limit - used), held)
        for kind, key, place in _LIMITS
        if (limit := resource.getrlimit(kind)[0]) != resource.RLIM_INFINITY
        and (used := _kib(root / "proc/self/status", key)) is not None
    ]
    return min(memories, key=lambda memory: memory.free, default=None)


def _cgroups_free(root: Path) -> Iterator[int]:
    """Yield what each memory cgroup around this process leaves; a container sees its own as the root of the mount."""
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        files = _V1 if controllers else _V2
        below = PurePosixPath(path.lstrip("/"))
        for folder in {below, *below.parents}:
            place = root / files.mount / folder
            limit, used = _number(place / files.limit), _number(place / files.used)
            if limit is not None and used is not None:
                stats = dict(line.split()[:2] for line in _lines(place / "memory.stat"))
                yield limit - used + int(stats.get(files.reclaimable, 0))


def _number(file: Path) -> int | None:
    """Return the number in a file; None for other content such as 'max'."""
    text = "".join(_lines(file))
    return int(text) if text.isdigit() else None


def _kib(file: Path, key: str) -> int | None:
    """Return the bytes of a line such as 'MemAvailable: 7 kB'."""
    return next((int(line.split()[1]) * 1024 for line in _lines(file) if line.startswith(f"{key}:")), None)


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:
        return []
