"""Free memory as the kernel states it: of the machine, or of the tightest cgroup around the process."""

import resource
from collections.abc import Mapping
from pathlib import Path

import pytest

from prolepsis.engine.kv.machine import ADDRESS_SPACE, CGROUP, DATA, THIS_MACHINE, FreeMemory, host_memory

MACHINE = {
    "proc/meminfo": "MemTotal:       2000 kB\nMemAvailable:   1000 kB\n",
    "proc/self/status": "Name:\tpython\nRssAnon:\t     100 kB\n",
}
V1 = "sys/fs/cgroup/memory"
V2 = "sys/fs/cgroup"


def free(root: Path, files: Mapping[str, str]) -> FreeMemory:
    for name, text in {**MACHINE, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return host_memory(root)


def v1(limit: int, used: int, cache: int = 0, below: str = "") -> dict[str, str]:
    folder = f"{V1}{below}"
    return {
        f"{folder}/memory.limit_in_bytes": f"{limit}\n",
        f"{folder}/memory.usage_in_bytes": f"{used}\n",
        f"{folder}/memory.stat": f"inactive_file 7\ntotal_inactive_file {cache}\n",
    }


def v2(limit: int | str, used: int, cache: int = 0, below: str = "") -> dict[str, str]:
    folder = f"{V2}{below}"
    return {
        f"{folder}/memory.max": f"{limit}\n",
        f"{folder}/memory.current": f"{used}\n",
        f"{folder}/memory.stat": f"anon 3\ninactive_file {cache}\n",
    }


def test_a_machine_without_cgroups(tmp_path: Path) -> None:
    assert free(tmp_path, {}) == FreeMemory(THIS_MACHINE, 1000 * 1024, 100 * 1024)


@pytest.mark.parametrize(
    "files",
    [
        {"proc/self/cgroup": "0::/a/b\n", **v2(90000, 30000, 5000, "/a")},
        {"proc/self/cgroup": "0::/a/b\n", **v2(90000, 30000, 5000, "/a/b"), **v2("max", 50000)},
        {"proc/self/cgroup": "0::/../x\n", **v2(90000, 30000, 5000)},
        {"proc/self/cgroup": "5:cpu,cpuacct:/\n4:memory:/a\n", **v1(90000, 30000, 5000, "/a"), **v1(2**63, 9)},
        {"proc/self/cgroup": "4:memory:/outside/the/container\n0::/\n", **v1(90000, 30000, 5000)},
    ],
    ids=["v2 parent", "v2 own", "v2 container", "v1", "v1 container"],
)
def test_the_tightest_cgroup_counts_without_the_cache_that_it_can_give_up(
    tmp_path: Path, files: Mapping[str, str]
) -> None:
    assert free(tmp_path, files) == FreeMemory(CGROUP, 65000, 100 * 1024)


def test_a_cgroup_with_more_than_the_machine_does_not_count(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "4:memory:/\n", **v1(9223372036854771712, 0)}
    assert free(tmp_path, files) == FreeMemory(THIS_MACHINE, 1000 * 1024, 100 * 1024)


def test_a_cgroup_above_its_limit_has_nothing_left(tmp_path: Path) -> None:
    assert free(tmp_path, {"proc/self/cgroup": "0::/\n", **v2(10, 30)}).free == 0


def test_a_limit_of_the_process_counts_where_it_is_the_tightest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = {resource.RLIMIT_AS: 900 * 1024, resource.RLIMIT_DATA: resource.RLIM_INFINITY}
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (limits[kind], limits[kind]))
    status = {"proc/self/status": MACHINE["proc/self/status"] + "VmSize:\t 300 kB\nVmData:\t 250 kB\n"}
    assert free(tmp_path, status) == FreeMemory(ADDRESS_SPACE, 600 * 1024, 100 * 1024)
    limits[resource.RLIMIT_DATA] = 200 * 1024
    assert free(tmp_path, status) == FreeMemory(DATA, 0, 100 * 1024)
    limits |= {resource.RLIMIT_AS: 2**40, resource.RLIMIT_DATA: 2**40}
    assert free(tmp_path, status).place == THIS_MACHINE
