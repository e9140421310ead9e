"""What a container's limits did, read from the files of its cgroup."""

from pathlib import Path

import structlog

from prolepsis.core.telemetry.container import ContainerCollector
from prolepsis.core.telemetry.declare import MetricsRegistry


def container(root: Path, kills: int, throttled_us: int) -> None:
    folder = root / "sys/fs/cgroup/pod/server"
    folder.mkdir(parents=True, exist_ok=True)
    (root / "proc/self").mkdir(parents=True, exist_ok=True)
    (root / "proc/self/cgroup").write_text("4:memory:/other\n0::/pod/server\n")
    (folder / "memory.events").write_text(f"oom {kills + 3}\noom_kill {kills}\noom_group_kill 0\n")
    (folder / "cpu.stat").write_text(f"usage_usec 7\nnr_throttled 2\nthrottled_usec {throttled_us}\n")


def shown(registry: MetricsRegistry) -> dict[str, float]:
    return {sample.name: sample.value for family in registry.collect() for sample in family.samples}


def test_kills_and_withheld_time_are_counted_and_kills_logged_once(tmp_path: Path) -> None:
    container(tmp_path, kills=0, throttled_us=1_500_000)
    registry = MetricsRegistry()
    ContainerCollector(registry, tmp_path)
    with structlog.testing.capture_logs() as logs:
        assert shown(registry) == {"prolepsis_memory_kills_total": 0.0, "prolepsis_cpu_throttled_seconds_total": 1.5}
        container(tmp_path, kills=2, throttled_us=1_500_000)
        assert [shown(registry)["prolepsis_memory_kills_total"] for _ in range(2)] == [2.0, 2.0]
    assert [(line["event"], line["processes"]) for line in logs] == [("killed_for_memory", 2)]


def test_a_process_without_limits_has_no_such_series(tmp_path: Path) -> None:
    registry = MetricsRegistry()
    ContainerCollector(registry, tmp_path)
    assert shown(registry) == {}
    container(tmp_path, kills=0, throttled_us=0)
    (tmp_path / "sys/fs/cgroup/pod/server/cpu.stat").write_text("usage_usec 7\n")  # the root cgroup
    assert shown(registry) == {"prolepsis_memory_kills_total": 0.0}
