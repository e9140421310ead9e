"""What the limits of a container did to this process and those beside it, read when they are scraped."""

from collections.abc import Iterable
from pathlib import Path

import structlog
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from prolepsis.core.telemetry.declare import PREFIX, declared
from prolepsis.core.telemetry.labels import MetricFamily

log = structlog.get_logger(__name__)
_KILLS = PREFIX + "memory_kills", "Processes of the server's container that the kernel killed for its limit of memory"
_THROTTLED = PREFIX + "cpu_throttled_seconds", "Time of threads that waited for the container's limit of CPU, summed"


class ContainerCollector(Collector):
    """Counters of this process's cgroup (version 2); none where it has none. Kills are logged as they are seen."""

    def __init__(self, registry: CollectorRegistry, root: Path = Path("/")) -> None:
        self._root, self._num_kills = root, 0
        for name, text in (_KILLS, _THROTTLED):
            declared(registry, MetricFamily(f"{name}_total", "counter", text))
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        folder = self._folder()
        num_kills = _value(folder, "memory.events", "oom_kill")
        waited_us = _value(folder, "cpu.stat", "throttled_usec")
        if num_kills is not None and num_kills > self._num_kills:
            log.warning("killed_for_memory", processes=num_kills - self._num_kills)
            self._num_kills = num_kills
        yield CounterMetricFamily(*_KILLS, value=num_kills)
        yield CounterMetricFamily(*_THROTTLED, value=None if waited_us is None else waited_us / 1e6)

    def _folder(self) -> Path | None:
        """Return the folder of the cgroup's files, None where the process has none of version 2."""
        try:
            own = (self._root / "proc/self/cgroup").read_text().splitlines()
        except (OSError, ValueError):
            return None
        paths = [line.removeprefix("0::/") for line in own if line.startswith("0::")]
        return self._root / "sys/fs/cgroup" / paths[0] if len(paths) == 1 else None


def _value(folder: Path | None, file: str, key: str) -> int | None:
    try:
        lines = (folder / file).read_text().splitlines() if folder is not None else []
        return next((int(line.split()[1]) for line in lines if line.startswith(f"{key} ")), None)
    except (OSError, ValueError):
        return None
